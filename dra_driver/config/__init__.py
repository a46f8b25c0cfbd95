"""What a user may ask for: NeuronConfig and UltraServerConfig, decoded strictly."""
