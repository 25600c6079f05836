"""The scores, as pure functions of tensors."""
