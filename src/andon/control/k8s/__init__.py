"""Kubernetes manifests (`andon k8s render`).

All grace periods and probe settings are derived from one number, in one place.
"""
