// Runs in browsers as it stands. Builds no markup from text: everything is an element or a text node.

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

const networks = [...document.querySelectorAll('.networks li')].map(({ dataset }) => dataset)

/** Amount in the asset's own unit and the network's name, for ids such as eip155:8453. */
function describe(id, asset, amount) {
  const known = networks.find(({ chain }) => `eip155:${chain}` === id)
  if (known === undefined) return `${amount} of ${asset} on ${id}`
  const same = known.asset.toLowerCase() === String(asset).toLowerCase()
  if (!same || !/^\d+$/.test(amount)) return `${amount} of ${asset} on ${known.name}`
  return `${decimal(amount, Number(known.decimals))} ${known.symbol} on ${known.name}`
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

/** The challenges of WWW-Authenticate, which a server joins with commas. */
function challengesOf(header) {
  if (header === null) return []
  return header.split(/,\s*(?=Payment )/).map((text) => {
    const parameters = [...text.matchAll(/([a-z]+)="([^"]*)"/g)]
    const raw = Object.fromEntries(parameters.map(([, name, value]) => [name, value]))
    return { raw, request: decode(raw.request) }
  })
}

function facts(pairs) {
  const list = element('dl')
  for (const [name, value] of pairs) {
    list.append(element('dt', {}, name), element('dd', {}, String(value)))
  }
  return list
}

function json(name, value) {
  const text = typeof value === 'string' ? value : JSON.stringify(value, undefined, 2)
  const code = element('code', {}, text)
  return element('details', {}, element('summary', {}, name), element('pre', {}, code))
}

function showMpp(challenges) {
  return challenges.flatMap(({ raw, request }) => {
    const { amount, currency, recipient, methodDetails } = request
    return [
      element('h5', {}, describe(`eip155:${methodDetails.chainId}`, currency, amount)),
      facts([
        ['paid to', recipient],
        ['by', methodDetails.credentialTypes.join(' or ')],
        ['expires', raw.expires],
        ['challenge', raw.id],
      ]),
      json('The request that is signed', request),
    ]
  })
}

function showX402(required) {
  return [
    ...required.accepts.flatMap(({ network, asset, amount, payTo, extra, maxTimeoutSeconds }) => [
      element('h5', {}, describe(network, asset, amount)),
      facts([
        ['paid to', payTo],
        ['by', extra.assetTransferMethod],
        ['signed for at most', `${maxTimeoutSeconds} s`],
      ]),
    ]),
    json('The whole PAYMENT-REQUIRED', required),
  ]
}

function show(response, text, milliseconds) {
  const summary = `${response.status} ${response.statusText} after ${milliseconds} ms`
  const parts = [element('p', {}, element('strong', {}, summary.replace('  ', ' ')))]
  const challenges = challengesOf(response.headers.get('www-authenticate'))
  const required = response.headers.get('payment-required')
  if (challenges.length > 0) {
    parts.push(element('h4', {}, 'MPP: WWW-Authenticate'), ...showMpp(challenges))
  }
  if (required !== null) {
    parts.push(element('h4', {}, 'x402: PAYMENT-REQUIRED'), ...showX402(decode(required)))
  }
  let body = text
  try {
    body = JSON.parse(text)
    const problems = body.invalidParams ?? []
    for (const { name, reason } of problems) {
      parts.push(element('p', { class: 'fault' }, `${name}: ${reason}`))
    }
  } catch {
    // Shown as it is.
  }
  parts.push(json('The body', body))
  return parts
}

/** Sends the request without paying; only what is sold here can be asked for. */
async function ask(panel, answer) {
  const { method } = panel.dataset
  const target = panel.querySelector('[name=target]').value.trim()
  const body = panel.querySelector('[name=body]').value
  if (!target.startsWith('/m/')) {
    answer.replaceChildren(element('p', { class: 'fault' }, 'The request must begin with /m/.'))
    return
  }
  answer.replaceChildren(element('p', {}, 'Asking ...'))
  const hasBody = method !== 'GET' && body !== ''
  try {
    const startedAt = performance.now()
    const response = await fetch(target, {
      method,
      credentials: 'omit',
      redirect: 'error',
      ...(hasBody ? { body, headers: { 'content-type': 'application/json' } } : {}),
    })
    const text = await response.text()
    answer.replaceChildren(...show(response, text, Math.round(performance.now() - startedAt)))
  } catch {
    answer.replaceChildren(element('p', { class: 'fault' }, 'There was no answer.'))
  }
}

/** Made when a route is opened: most never are. */
function fill(panel) {
  if (panel.childElementCount > 0) return
  const { method, target, body } = panel.dataset
  panel.append(document.querySelector('#try').content.cloneNode(true))
  panel.querySelector('.verb').textContent = method
  panel.querySelector('[name=target]').value = target
  panel.querySelector('[name=body]').value = body
  if (body === '') panel.querySelector('.body').hidden = true
  const answer = panel.querySelector('.answer')
  panel.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault()
    ask(panel, answer)
  })
}

function addCopy(command) {
  const note = command.querySelector('p')
  const code = command.querySelector('code')
  if (note.querySelector('button') !== null) return
  const name = note.querySelector('strong')?.textContent ?? 'the command'
  const copy = element('button', {
    type: 'button',
    class: 'copy',
    'aria-label': `Copy ${name}`,
    onclick: async () => {
      let said = 'Copied'
      try {
        await navigator.clipboard.writeText(code.textContent)
      } catch {
        getSelection().selectAllChildren(code)
        said = 'Selected'
      }
      copy.textContent = said
      setTimeout(() => {
        copy.textContent = 'Copy'
      }, 2000)
    },
  })
  copy.textContent = 'Copy'
  copy.setAttribute('aria-live', 'polite')
  note.append(copy)
}

for (const note of document.querySelectorAll('.scriptless')) note.remove()
for (const route of document.querySelectorAll('details.route')) {
  route.addEventListener('toggle', () => {
    if (!route.open) return
    fill(route.querySelector('.try'))
    for (const command of route.querySelectorAll('.command')) addCopy(command)
  })
}
for (const command of document.querySelectorAll('.steps .command')) addCopy(command)

/** Live prices of the stock tokens. */
async function refresh(table) {
  const status = table.querySelector('[role=status]')
  try {
    const response = await fetch(table.dataset.list, { credentials: 'omit' })
    if (!response.ok) throw new Error(String(response.status))
    const { stocks } = await response.json()
    for (const stock of stocks) {
      const row = table.querySelector(`tr[data-symbol="${CSS.escape(stock.symbol)}"]`)
      if (row === null) continue
      row.querySelector('[data-field=price]').textContent = stock.price ?? '-'
      row.querySelector('[data-field=status]').textContent = stock.status ?? '-'
    }
    status.textContent = `prices of ${new Date().toLocaleTimeString()}`
  } catch {
    status.textContent = 'prices are not available now'
  }
}

for (const table of document.querySelectorAll('table[data-list]')) {
  refresh(table)
  setInterval(() => {
    if (document.visibilityState === 'visible') refresh(table)
  }, 15_000)
}
