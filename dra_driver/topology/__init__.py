"""What the hardware is: instance types, fabrics, connected sets and pictures of them. Values in, values out."""
