// MiniWoB pages as BrowserGym shows them: without goal, timer and reward on the page (browsergym/miniwob/base.py,
// `remove_human_display`, Apache-2.0), started at a seed without loading the page again.
(() => {
  const api = window.__webrl;
  if (api.miniwob) return;
  const DISPLAY = ['reward-display', 'click-canvas', 'sync-task-cover'];
  const stored = {};
  let query = null;
  let used = false;

  const removeDisplay = () => {
    core.clearTimer();
    document.body.removeEventListener('click', core.canvasDrawClick);
    query = document.getElementById('query').cloneNode(true);
    document.getElementById('query').innerHTML = '';
    for (const id of DISPLAY) {
      stored[id] = document.getElementById(id);
      stored[id].remove();
    }
  };
  const bringBackDisplay = () => {
    document.getElementById('query').innerHTML = query.innerHTML;
    for (const id of DISPLAY) document.body.appendChild(stored[id]);
    core.createDisplay();
  };
  const withDisplay = (name) => {
    const legacy = core[name];
    core[name] = function (...args) {
      bringBackDisplay();
      const result = legacy.apply(core, args);
      removeDisplay();
      return result;
    };
  };

  const clean = (text) => text.replace(/\s+/g, ' ').trim();
  const hex = (rgb) => '#' + rgb.match(/^rgb\((\d+),\s*(\d+),\s*(\d+)\)$/).slice(1)
    .map((n) => parseInt(n, 10).toString(16).padStart(2, '0')).join('');
  // Two pages say part of their goal without words (browsergym/miniwob/all.py).
  const GOALS = {
    'click-menu-2': (div) => div.children.length === 0 ? clean(div.textContent)
      : `${clean(div.childNodes[0].textContent)} "${div.children[0].getAttribute('class').split(' ')[1]}" ` +
        clean(div.childNodes[2].textContent),
    'use-colorwheel-2': (div) => `${clean(div.children[0].textContent)} ` +
      `${hex(div.children[1].style.backgroundColor)} ${clean(div.children[2].textContent)}`,
  };

  const patch = (page) => {
    if (GOALS[page]) core.getUtterance = () => GOALS[page](document.getElementById('query'));
    for (const name of ['getUtterance', 'endEpisode', 'startEpisodeReal']) withDisplay(name);
    removeDisplay();
  };

  const start = async (page, seed, maxTimeMs, source) => {
    if (used) {
      if (!(await api.rewrite(source, 3000)) || typeof core === 'undefined') return null;
    }
    used = true;
    patch(page);
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = maxTimeMs;
    core.startEpisodeReal();
    while (!WOB_TASK_READY) await new Promise((resolve) => api.native.setTimeout(resolve, 5));
    const utterance = core.getUtterance();
    return typeof utterance === 'object' ? utterance.utterance : utterance;
  };
  api.miniwob = {
    // Starts an episode; gives the goal, or null if the page has to be loaded by a navigation. `page` is the file's
    // name without `.html`, `source` its content: a page that was used before is written anew from it first, because
    // many pages keep listeners, widgets or variables from one episode to the next. The promise is held here: Chromium
    // lost one in a hundred ("Promise was collected") while the document was written anew.
    start: (...how) => (api.starting = start(...how)),
  };
  api.state = () => (typeof WOB_DONE_GLOBAL === 'undefined' ? null
    : { raw_reward: WOB_RAW_REWARD_GLOBAL, done: WOB_DONE_GLOBAL });
})();
