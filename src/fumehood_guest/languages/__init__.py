"""Programs that run cells in other languages, each driven over two pipes by `fumehood_guest.context.driven`."""
