"""The dashboard in a browser: pages and a websocket, each guarded. Needs the extra `serve`."""
