// Modules of which tests use only files, the CustomResourceDefinitions. `go mod tidy` would remove them.
module unmask.dev/e2e/gateway

go 1.26

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.6.0
)
