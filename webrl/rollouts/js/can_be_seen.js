// A frame that is hidden, tiny (it counts visitors) or beside the page, where no scrolling leads, shows nothing.
function() {
  const { right, bottom } = this.getBoundingClientRect();
  const isBeside = bottom + scrollY <= 0 ||
    (right + scrollX <= 0 && getComputedStyle(document.documentElement).direction === 'ltr');
  return Math.min(this.clientWidth, this.clientHeight) > 1 && !isBeside &&
    this.checkVisibility({ checkVisibilityCSS: true });
}
