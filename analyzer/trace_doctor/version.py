"""The version of this package, which its metadata is made from as well."""

VERSION = "0.2.0"
