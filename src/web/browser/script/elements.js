// The files of this folder are one script, which runs in browsers as it stands. It builds no markup
// from text: everything is an element or a text node. wallet/*.js use its functions.

/** An element with attributes, listeners (`on...`) and children. */
function element(name, attributes, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value)
    else made.setAttribute(key, value)
  }
  made.append(...children)
  return made
}

function decimal(atomic, decimals) {
  const digits = String(atomic).padStart(decimals + 1, '0')
  const fraction = digits.slice(-decimals).replace(/0+$/, '').padEnd(2, '0')
  return `${digits.slice(0, -decimals)}.${fraction}`
}

/** JSON of base64 in either alphabet. */
function decode(text) {
  const standard = text.replaceAll('-', '+').replaceAll('_', '/')
  const bytes = Uint8Array.from(atob(standard), (character) => character.charCodeAt(0))
  return JSON.parse(new TextDecoder().decode(bytes))
}

function facts(pairs) {
  const list = element('dl')
  for (const [name, value, explorer] of pairs) {
    const text = String(value)
    const shown = /^0x(?:[0-9a-fA-F]{40}|[0-9a-fA-F]{64})$/.test(text) ? addressOf(text) : text
    const see = { href: `${explorer}/tx/${text}`, rel: 'noreferrer' }
    const link = explorer === undefined ? [] : [' ', element('a', see, 'See it in the explorer')]
    list.append(element('dt', {}, name), element('dd', {}, shown, ...link))
  }
  return list
}

const short = (address) => `${address.slice(0, 6)}\u2026${address.slice(-4)}`

/** An address or a hash in its short form, with a button that copies the whole. */
function addressOf(whole) {
  const copy = {
    type: 'button',
    class: 'copy',
    'aria-label': `Copy ${short(whole)}`,
    'data-copy': whole,
  }
  const code = element('code', { title: whole }, short(whole))
  return element('span', { class: 'address' }, code, element('button', copy, 'Copy'))
}

function json(name, value) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, undefined, 2)
  const code = element('code', {}, text)
  const pre = element('pre', { tabindex: '0', 'aria-label': name }, code)
  return element('details', {}, element('summary', {}, name), pre)
}

for (const note of document.querySelectorAll('.scriptless')) note.remove()
