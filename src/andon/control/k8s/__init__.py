"""Kubernetes manifests whose numbers fit each other."""
