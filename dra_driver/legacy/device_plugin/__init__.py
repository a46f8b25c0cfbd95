"""The device plugin: offers a node's chips and cores to kubelet, and gives each container the ones chosen for it."""
