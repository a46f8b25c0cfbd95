module neuron-dra-driver.invalid/cel-recorder

go 1.26.0
