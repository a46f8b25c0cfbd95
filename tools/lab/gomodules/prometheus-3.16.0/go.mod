module neuron-dra-driver.invalid/lab/prometheus-3.16.0

go 1.26.7

require github.com/prometheus/prometheus v0.316.0
