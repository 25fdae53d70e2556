"""What can be asked, one module per noun: values in, values out, nothing printed."""
