"""Workers on other machines: ranks fan out over a Dask cluster instead of processes of this one."""
