// The page as text in one call: the lines of BrowserGym's flattened accessibility tree, worked out from the document
// itself. Roles, names and properties follow Chromium's accessibility tree (HTML-AAM and accname) for what web pages
// commonly use. Elements for which they do not in the browser at hand (`foreign`, learnt by webrl/rollouts/probe.py), or
// which no script can see into, are only reported: the page is then read from the tree itself.
(() => {
  const api = window.__webrl;
  if (api.extract) return;

  const ROLES = {
    address: 'group', article: 'article', aside: 'complementary', audio: 'Audio', blockquote: 'blockquote',
    button: 'button', canvas: 'Canvas', caption: 'caption', code: 'code', dd: 'definition', del: 'deletion',
    details: 'group', dfn: 'term', dialog: 'dialog', dl: 'DescriptionList', dt: 'term', em: 'emphasis',
    fieldset: 'group', figcaption: 'Figcaption', figure: 'figure', form: 'form', h1: 'heading', h2: 'heading',
    h3: 'heading', h4: 'heading', h5: 'heading', h6: 'heading', hgroup: 'group', hr: 'separator', iframe: 'Iframe',
    ins: 'insertion', label: 'LabelText', legend: 'Legend', li: 'listitem', main: 'main', mark: 'mark',
    math: 'math', menu: 'list', meter: 'meter', nav: 'navigation', ol: 'list', optgroup: 'group', option: 'option',
    output: 'status', p: 'paragraph', progress: 'progressbar', s: 'deletion', search: 'search', strong: 'strong',
    sub: 'subscript', summary: 'DisclosureTriangle', sup: 'superscript', svg: 'SvgRoot', table: 'table',
    tbody: 'rowgroup', td: 'cell', textarea: 'textbox', tfoot: 'rowgroup', thead: 'rowgroup', time: 'time',
    tr: 'row', ul: 'list', video: 'Video',
  };
  const INPUT_ROLES = {
    button: 'button', checkbox: 'checkbox', color: 'ColorWell', file: 'button', image: 'button',
    number: 'spinbutton', radio: 'radio', range: 'slider',
    reset: 'button', search: 'searchbox', submit: 'button',
  };
  // Which field of a date has the focus and the state of a player are in the tree alone.
  const OPAQUE = 'input:is([type=date i], [type=datetime-local i], [type=month i], [type=time i], [type=week i]), ' +
    'audio[controls], video';
  const SVG_SHAPES = new Set(['circle', 'ellipse', 'line', 'path', 'polygon', 'polyline', 'rect', 'use']);
  const SKIPPED = new Set(['head', 'script', 'style', 'template', 'noscript', 'br', 'wbr', 'meta', 'link', 'title', 'map',
    'datalist', 'source', 'track', 'param', 'colgroup', 'col', 'rp', 'desc', 'defs', 'metadata']);
  const NAMED_BY_CONTENT = new Set(['button', 'link', 'heading', 'cell', 'gridcell', 'columnheader', 'rowheader', 'option',
    'tab', 'menuitem', 'menuitemcheckbox', 'menuitemradio', 'checkbox', 'radio', 'switch', 'treeitem', 'tooltip',
    'DisclosureTriangle', 'term']);
  const MAY_BE_REQUIRED = new Set(['combobox', 'searchbox', 'spinbutton', 'textbox']);
  const SELECTABLE = new Set(['option', 'tab', 'treeitem']);
  const ICONS = /^\s*[\ue000-\uf8ff][\s\ue000-\uf8ff]*$/; // of a font: characters for private use
  const MARKERS = { disc: '• ', circle: '◦ ', square: '■ ' };
  const LIVE = { alert: 'assertive', log: 'polite', status: 'polite' };

  // Python's repr of a string.
  const repr = (text) => {
    const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
    let body = text.replace(/\\/g, '\\\\').replace(/\n/g, '\\n').replace(/\r/g, '\\r').replace(/\t/g, '\\t');
    if (quote === "'") body = body.replace(/'/g, "\\'");
    body = body.replace(/(?! )[\p{C}\p{Z}]/gu, (char) => {
      const code = char.codePointAt(0);
      if (code < 0x100) return '\\x' + code.toString(16).padStart(2, '0');
      return code < 0x10000 ? '\\u' + code.toString(16).padStart(4, '0') : '\\U' + code.toString(16).padStart(8, '0');
    });
    return quote + body + quote;
  };
  const collapse = (text) => text.replace(/[ \t\n\r\f]+/g, ' ');
  const strip = (text) => text.replace(/^\s+|\s+$/g, '');
  const trim = (text) => text.replace(/^[ \t\n\r\f]+|[ \t\n\r\f]+$/g, '');

  const styles = new Map();
  const styleOf = (element) => {
    let style = styles.get(element);
    if (!style) styles.set(element, (style = getComputedStyle(element)));
    return style;
  };
  const isGone = (element) => element.ariaHidden === 'true' || styleOf(element).display === 'none';
  const isVisible = (element) => styleOf(element).visibility === 'visible';

  const pseudoText = (element, which) => {
    const content = getComputedStyle(element, which).content;
    const match = /^"((?:[^"\\]|\\.)*)"/.exec(content);
    return match ? match[1].replace(/\\(.)/g, '$1') : '';
  };

  const roleOf = (element, tag) => {
    const given = element.getAttribute('role');
    if (given) {
      const role = given.trim().split(/\s+/)[0];
      if (role === 'img') return 'image';
      if (role !== 'presentation' && role !== 'none') return role;
      if (element.tabIndex < 0 && !element.hasAttribute('tabindex')) return 'none';  // what can be focused keeps its own role
    }
    if (tag === 'a' || tag === 'area') return element.hasAttribute('href') || api.isClickable(element) ? 'link' : 'generic';
    if (tag === 'input') {
      const type = element.type;
      if (element.list && /^(email|search|tel|text|url)$/.test(type)) return 'combobox';
      return INPUT_ROLES[type] || 'textbox';
    }
    if (tag === 'select') return element.multiple || element.size > 1 ? 'listbox' : 'combobox';
    if (tag === 'img') return 'image';
    if (tag === 'th') return thRole(element);
    if (tag === 'svg') return svgRole(element);
    if (tag === 'li') return /^(list|none)$/.test(roleOf(element.parentElement, element.parentElement.tagName.toLowerCase())) ? 'listitem' : 'generic';
    if (tag === 'button' && element.hasAttribute('aria-pressed')) return 'button';
    if (tag === 'header' || tag === 'footer') {
      if (element.closest('article, aside, main, nav, section')) return tag === 'header' ? 'sectionheader' : 'sectionfooter';
      return tag === 'header' ? 'banner' : 'contentinfo';
    }
    if (tag === 'section') return nameFromAttributes(element) ? 'region' : 'generic';
    const role = ROLES[tag];
    if (role) return role;
    // An element whose content is a picture is one.
    return styleOf(element).content.startsWith('url(') ? 'image' : 'generic';
  };

  // Shapes are part of the page's meaning if they can be clicked or have a name.
  const isShown = (shape) => api.isClickable(shape) || shape.hasAttribute('tabindex') || nameFromAttributes(shape) !== '';
  const svgRole = (svg) => ([...svg.querySelectorAll('*')].some((part) =>
    (part.tagName === 'text' && part.textContent) || (SVG_SHAPES.has(part.tagName) && isShown(part))) ? 'SvgRoot' : 'image');

  const thRole = (element) => {
    const scope = element.getAttribute('scope');
    if (scope) return scope.startsWith('row') ? 'rowheader' : 'columnheader';
    const row = element.parentElement;
    if (row?.parentElement?.tagName === 'THEAD') return 'columnheader';
    return [...(row?.children || [])].some((cell) => cell.tagName === 'TD') ? 'rowheader' : 'columnheader';
  };

  const nameFromAttributes = (element) => {
    const ids = element.getAttribute('aria-labelledby');
    if (ids) {
      const texts = ids.trim().split(/\s+/).map((id) => document.getElementById(id)).filter(Boolean);
      const name = texts.map((target) => strip(contentText(target, true))).join(' ');
      if (name) return name;
    }
    return strip(element.getAttribute('aria-label') || '');
  };

  // Text of an element's content as accname joins it: blocks are set apart by spaces.
  const contentText = (element, evenHidden = false, except = null) => {
    let text = pseudoText(element, '::before');
    for (const node of element.shadowRoot ? element.shadowRoot.childNodes : element.childNodes) {
      if (node.nodeType === Node.TEXT_NODE) text += collapse(node.data);
      if (node.nodeType !== Node.ELEMENT_NODE) continue;
      const tag = node.tagName.toLowerCase();
      if (tag === 'br') text += ' ';
      if (SKIPPED.has(tag) || node === except || (!evenHidden && (isGone(node) || !isVisible(node)))) continue;
      let inner = nameFromAttributes(node);
      if (!inner && tag === 'img') inner = node.alt || node.title;
      if (!inner && (tag === 'input' || tag === 'textarea')) inner = tag === 'input' && /^(checkbox|radio|hidden)$/.test(node.type) ? '' : node.value;
      if (!inner && tag === 'select') inner = [...node.selectedOptions].map((option) => option.label).join(' ');
      if (!inner && tag !== 'select') inner = contentText(node, evenHidden, except);
      const inline = /^(inline|contents)/.test(styleOf(node).display) && styleOf(node).display !== 'inline-block';
      text += inline ? inner : ` ${inner} `;
    }
    return collapse(text + pseudoText(element, '::after'));
  };

  const nameFromLabels = (element) => {
    if (!element.labels?.length) return '';
    return strip([...element.labels].map((label) => strip(collapse(contentText(label, false, element)))).filter(Boolean).join(' '));
  };

  const nameOf = (element, tag, role) => {
    const given = nameFromAttributes(element);
    if (given) return given;
    let name = '';
    if (tag === 'input' && (role === 'button')) {
      name = nameFromLabels(element) || (element.type === 'file' ? `Choose File${element.multiple ? 's' : ''}` : element.value);
    } else if (tag === 'input' || tag === 'textarea' || tag === 'select' || tag === 'meter' || tag === 'progress') {
      name = nameFromLabels(element) || element.title || element.getAttribute('placeholder') || '';
      return name;
    } else if (tag === 'img') {
      name = element.alt;
    } else if (tag === 'option') {
      name = element.label;
    } else if (tag === 'fieldset' || tag === 'table') {
      const titled = element.querySelector(tag === 'fieldset' ? ':scope > legend' : ':scope > caption');
      name = titled ? strip(contentText(titled)) : '';
    } else if (NAMED_BY_CONTENT.has(role)) {
      name = trim(contentText(element)) || (tag === 'button' ? nameFromLabels(element) : '');
    }
    return trim(name) || element.getAttribute('title') || '';
  };

  const number = (value) => (Number.isInteger(value) ? String(value) : repr(String(value)).slice(1, -1));

  const shownValue = (field) => (field.type === 'password' ? '•'.repeat(field.value.length) : field.value);

  const valueOf = (element, tag, role) => {
    if (role === 'spinbutton' || role === 'slider' || role === 'progressbar' || role === 'meter') {
      const value = element.getAttribute('aria-valuenow') ?? (tag === 'input' && role === 'spinbutton' ? element.value : element.value);
      return value === '' || value === undefined || value === null ? null : number(Number(value));
    }
    if (tag === 'input' && element.type === 'file') {
      const { files } = element;
      return repr(files.length > 1 ? `${files.length} files` : files[0]?.name ?? 'No file chosen');
    }
    if (tag === 'select') return role === 'combobox' && element.selectedOptions[0]?.label ? repr(element.selectedOptions[0].label) : null;
    if (tag === 'textarea' || (tag === 'input' && !/^(button|checkbox|file|image|radio|reset|submit)$/.test(element.type))) {
      return element.value ? repr(shownValue(element)) : null;
    }
    if (tag !== 'input' && tag !== 'textarea' && /^(textbox|searchbox)$/.test(role) && strip(element.innerText)) return repr(element.innerText);
    return element.isContentEditable && element.parentElement && !element.parentElement.isContentEditable && strip(element.innerText)
      ? repr(element.innerText) : null;
  };

  const bool = (value) => (value ? 'True' : 'False');

  const isReferred = (name, target) => target !== null && (name === 'describedby' || target.checkVisibility());

  const propertiesOf = (element, tag, role, focus) => {
    const aria = (name) => element.getAttribute('aria-' + name);
    const list = [];
    const live = aria('live') || LIVE[role];
    if (live && live !== 'off') {
      list.push(`live=${repr(live)}`);
      if (aria('atomic') === 'true' || (aria('atomic') === null && (role === 'alert' || role === 'status'))) list.push('atomic');
      list.push(`relevant=${repr(aria('relevant') || 'additions text')}`);
    }
    const disabled = element.matches(':disabled') || element.closest('[aria-disabled="true"]');
    if (disabled && role !== 'generic' && role !== 'none' && role !== 'group') list.push('disabled=True');
    if (focus) list.push('focused');
    const autocomplete = aria('autocomplete') || (tag === 'input' && element.list ? 'list' : null);
    if (autocomplete && autocomplete !== 'none') list.push(`autocomplete=${repr(autocomplete)}`);
    const popup = tag === 'select' && role === 'combobox' ? 'menu'
      : tag === 'input' && role === 'combobox' ? 'listbox' : aria('haspopup') === 'true' ? 'menu' : aria('haspopup');
    if (popup && popup !== 'false') list.push(`hasPopup=${repr(popup)}`);
    if (role === 'listbox' || role === 'tablist' || role === 'tree' || role === 'grid') {
      list.push(`multiselectable=${bool(tag === 'select' ? element.multiple : aria('multiselectable') === 'true')}`);
    }
    const orientation = aria('orientation') || { listbox: 'vertical', menu: 'vertical', tablist: 'horizontal', slider: 'horizontal',
      menubar: 'horizontal', toolbar: 'horizontal', scrollbar: 'vertical', tree: 'vertical', separator: 'horizontal' }[role];
    if (orientation) list.push(`orientation=${repr(orientation)}`);
    if ((element.required && tag !== 'select' && MAY_BE_REQUIRED.has(role)) || aria('required') === 'true') list.push('required');
    list.push(...rangeOf(element, tag, role));
    if (tag === 'input' && (element.type === 'checkbox' || element.type === 'radio')) {
      list.push(`checked='${element.indeterminate ? 'mixed' : element.checked}'`);
    } else if (aria('checked') !== null && /^(checkbox|radio|switch|menuitemcheckbox|menuitemradio|option|treeitem)$/.test(role)) {
      list.push(`checked='${aria('checked')}'`);
    }
    if (tag === 'select' && role === 'combobox') list.push('expanded=False');
    else if (tag === 'summary') list.push(`expanded=${bool(element.parentElement.open)}`);
    else if (aria('expanded') !== null && role !== 'menu' && role !== 'group') list.push(`expanded=${bool(aria('expanded') === 'true')}`);
    if (role === 'dialog' || role === 'alertdialog') list.push(`modal=${bool(aria('modal') === 'true' || element.matches(':modal'))}`);
    if (aria('pressed') !== null) list.push(`pressed='${aria('pressed')}'`);
    if (tag === 'option') list.push(`selected=${bool(element.selected)}`);
    else if (SELECTABLE.has(role) && (role !== 'option' || aria('selected') !== null)) list.push(`selected=${bool(aria('selected') === 'true')}`);
    for (const [name, printed] of [['controls', 'controls'], ['describedby', 'describedby'],
      ['owns', 'owns']]) {
      const ids = aria(name);
      if (ids && ids.split(/\s+/).some((id) => isReferred(name, document.getElementById(id)))) list.push(`${printed}=${repr(ids)}`);
    }
    return list;
  };

  const rangeOf = (element, tag, role) => {
    if (!['spinbutton', 'slider', 'progressbar', 'meter', 'scrollbar'].includes(role)) return [];
    const isNative = tag === 'input' || tag === 'meter' || tag === 'progress';
    const bound = (name, fallback) => {
      const given = element.getAttribute('aria-value' + name) ?? (isNative ? element.getAttribute(name) : null);
      return given === null || given === '' ? fallback : Number(given);
    };
    const most = role === 'spinbutton' ? 0 : tag === 'meter' || tag === 'progress' ? 1 : 100;
    const text = element.getAttribute('aria-valuetext') ?? (tag === 'input' ? element.value : '');
    return [`valuemin=${number(bound('min', 0))}`, `valuemax=${number(bound('max', most))}`, `valuetext=${repr(text)}`];
  };

  // Lines of the whole document. `hidden`: ids of elements that are left out with all that is in them. Frames are one
  // line each, listed in `frameLines` by line number, depth below and bid; their own documents are extracted apart.
  // `foreign`: whether the lines are incomplete, because an element has to be read from the tree.
  api.extract = (hidden) => {
    const lines = [];
    const frames = [];
    const range = document.createRange();
    const foreign = api.foreign ? `${OPAQUE}, ${api.foreign}` : OPAQUE;
    let isForeign = false;
    const left = new Set(hidden.map((id) => document.getElementById(id)).filter(Boolean));
    let active = document.activeElement;
    while (active?.shadowRoot?.activeElement) active = active.shadowRoot.activeElement;
    styles.clear();

    const say = (depth, text) => lines.push('\t'.repeat(depth) + text);
    const sayText = (text, parentName, depth) => {
      if (api.every && ICONS.test(text)) return;
      if (text && !parentName.includes(trim(text) || text)) say(depth, `StaticText ${repr(strip(text))}`);
    };

    // White space between two inline boxes takes room on the line; anywhere else it does not exist.
    const isInline = (node) => node !== null && (node.nodeType === Node.TEXT_NODE ||
      (node.nodeType === Node.ELEMENT_NODE && styleOf(node).display === 'inline' && node.tagName !== 'BR'));
    const isRendered = (node) => {
      if (!isInline(node.previousSibling) || !isInline(node.nextSibling)) return false;
      range.selectNode(node);
      return range.getBoundingClientRect().width > 0;
    };

    const visitChildren = (element, parentName, depth, preserve) => {
      const before = pseudoText(element, '::before');
      if (before) sayText(before, parentName, depth);
      const nodes = element.tagName === 'DETAILS' && !element.open ? element.querySelectorAll(':scope > summary:first-of-type')
        : element.shadowRoot ? element.shadowRoot.childNodes
        : element.tagName === 'SLOT' && element.assignedNodes().length ? element.assignedNodes() : element.childNodes;
      for (const node of nodes) {
        if (node.nodeType === Node.ELEMENT_NODE) visit(node, parentName, depth);
        else if (node.nodeType === Node.TEXT_NODE && isVisible(element)) {
          const text = preserve ? node.data : collapse(node.data);
          if (text !== ' ' || isRendered(node)) sayText(text, parentName, depth);
        }
      }
      const after = pseudoText(element, '::after');
      if (after) sayText(after, parentName, depth);
    };

    const visitListItem = (element, isItem, depth) => {
      const style = styleOf(element);
      if (style.display !== 'list-item') return;
      if (style.listStyleImage !== 'none') {
        if (isItem) say(depth, "ListMarker ''");
        say(depth + isItem, "image ''");
      } else if (style.listStyleType !== 'none' && isItem) {
        say(depth, `ListMarker ${repr(strip(MARKERS[style.listStyleType] || `${element.value}.`))}`);
      }
    };

    const visit = (element, parentName, depth) => {
      const tag = element.tagName.toLowerCase();
      if (SKIPPED.has(tag) || left.has(element) || (tag === 'input' && element.type === 'hidden')) return;
      if (tag !== 'option' && tag !== 'optgroup' && isGone(element)) return;
      isForeign ||= element.matches(foreign) || api.isComponent(element);
      if (isForeign) return;
      const style = styleOf(element);
      if (SVG_SHAPES.has(tag)) {
        if (isVisible(element) && isShown(element)) say(depth, `graphics-symbol ${repr(nameFromAttributes(element))}`);
        return;
      }
      const preserve = style.whiteSpaceCollapse?.startsWith('preserve') ?? style.whiteSpace.startsWith('pre');
      if (!isVisible(element)) {
        visitChildren(element, '', depth, preserve);
        return;
      }
      const role = roleOf(element, tag);
      const bid = element.getAttribute('bid');
      const focus = element === active && element !== document.body;
      const given = role === 'generic' || role === 'none' ? nameFromAttributes(element) : nameOf(element, tag, role);
      const name = api.every && ICONS.test(given) ? element.title || given : given;
      const properties = propertiesOf(element, tag, role, focus);
      if (role === 'generic' && api.uses?.has(element)) properties.push(api.uses.get(element));
      const value = valueOf(element, tag, role);
      let below = depth;
      const isSaid = !(role === 'none' || (role === 'generic' && !properties.length));
      if (isSaid) {
        const label = role === 'generic' && !name ? role : `${role} ${repr(strip(name))}`;
        const words = [`${bid === null ? '' : `[${bid}] `}${label}${value === null ? '' : ` value=${value}`}`, ...properties];
        say(depth, words.join(', '));
        below = depth + 1;
      }
      if (role === 'Iframe') frames.push([lines.length - 1, below, bid]);
      else if (tag === 'select') visitOptions(element, role, below);
      else if (tag === 'textarea' || (tag === 'input' && !/^(button|submit|reset|image|file|checkbox|radio|color|range)$/.test(element.type))) {
        for (const line of shownValue(element).split('\n')) sayText(trim(line), '', below);
      } else if (tag === 'input') {
        if (role === 'button' && element.type !== 'file') sayText(element.value, name, below);
      } else {
        if (tag === 'li') visitListItem(element, role === 'listitem', below);
        if (tag !== 'meter' && tag !== 'progress') visitChildren(element, isSaid || !api.every ? name : '', below, preserve);
      }
    };

    const visitOptions = (element, role, depth) => {
      let below = depth;
      if (role === 'combobox') {
        say(depth, "MenuListPopup ''");
        below += 1;
      }
      for (const child of element.children) visitOption(child, below);
    };
    const visitOption = (element, depth) => {
      const bid = element.getAttribute('bid');
      if (element.tagName === 'OPTGROUP') {
        say(depth, `[${bid}] group ${repr(strip(element.label))}`);
        for (const child of element.children) visitOption(child, depth + 1);
      } else if (element.tagName === 'OPTION') {
        const off = element.matches(':disabled, select:disabled *');
        const state = off ? 'disabled=True' : `selected=${bool(element.selected)}`;
        say(depth, `[${bid}] option ${repr(strip(element.label))}, ${state}`);
      }
    };

    lines.push(`RootWebArea ${repr(strip(document.title))}${document.hasFocus() ? ', focused' : ''}`);
    if (document.body) visit(document.documentElement, document.title, 1);
    styles.clear();
    return { lines, frameLines: frames, foreign: isForeign };
  };
})();
