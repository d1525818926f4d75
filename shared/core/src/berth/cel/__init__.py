"""CEL, the expressions in selectors of DeviceClasses and ResourceClaims, with Kubernetes' environment. Pure."""
