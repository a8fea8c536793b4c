"""Stand-ins for the WebArena sites: small servers on loopback with the same log-in forms, addresses and markup.

Only what BrowserGym's evaluators and the scripted experts read is there, under the selectors they read it by; the
texts are those that the references of WebArena-Lite ask for. They are no replacement for the real sites: nothing
here says how an agent does on Magento, GitLab, Postmill or OpenStreetMap.
"""
