"""The suites of tasks that come with webrl; their base class is `webrl.rollouts.suite.Suite`."""
