"""A plugin of pytest for CloudVolume's own tests: they run with this package installed."""

import ndshm.cloudvolume

ndshm.cloudvolume.install()
