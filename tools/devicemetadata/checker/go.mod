module neuron-dra-driver.invalid/device-metadata-checker

go 1.26.0
