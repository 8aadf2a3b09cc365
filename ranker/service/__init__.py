"""The HTTP service: settings, the queue in front of the ranker, routes and the page. Start it with `ranker.serve`."""
