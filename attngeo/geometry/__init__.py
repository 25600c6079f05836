"""The scores and the variants of the form, as pure functions of tensors."""
