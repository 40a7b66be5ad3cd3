"""The tools that agents call: what each declares, who may call it, and how it is kept from doing harm."""
