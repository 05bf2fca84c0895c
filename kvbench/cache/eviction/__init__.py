"""Which cached block loses its contents first: one policy per name, behind `policy.EvictionPolicy`."""
