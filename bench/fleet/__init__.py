"""What a reader sees when the engine that writes for it is killed, here and behind routers by others. Not a
part of `make bench`: the others are installed from the package registry."""
