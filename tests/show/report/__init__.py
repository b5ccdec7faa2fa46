"""Tests of the report page's data and markup."""
