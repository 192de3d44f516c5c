"""The documentation of fumehood as a site: the folder `site` beside this file, which `fumehood serve` shows at /docs/."""
