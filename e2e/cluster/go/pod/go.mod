module unmask/e2e/pod

go 1.24.0
