"""The device plugin: offers a node's chips and cores to kubelet, and gives each container what was chosen for it."""
