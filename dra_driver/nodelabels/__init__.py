"""Labels on the own Node that say which UltraServer it is part of."""
