"""Training on images: classifiers by the recipe of Saponati et al. 2025 (arXiv 2502.10927), section S3.

If that section gives no number, it is that of torchvision's recipe for ViT-B/16, which it follows otherwise.
"""
