module neuron-dra-driver.invalid/lab/extender-load

go 1.26.0
