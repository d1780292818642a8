// Shows what was bought.

const shownMaxCharacters = 200_000

const finalStates = ['delivered', 'refunded', 'held', 'failed']

/** Reads an order that was paid until it has ended. An operator decides about one that is held. */
async function followOrder(location_, { settlement }, say) {
  const { pathname } = new URL(location_, location.href)
  for (;;) {
    const response = await fetch(pathname, { credentials: 'omit', cache: 'no-store' })
    const order = await response.clone().json()
    if (!response.ok || finalStates.includes(order.status)) return { response, settlement }
    say(`Paid. The order is ${order.status} ...`)
    await pause(1000)
  }
}

/** Shows an answer as text or as an image, never as markup, and lets the user store it. */
async function present(panel, { response, settlement }) {
  const type = response.headers.get('content-type') ?? ''
  const blob = await response.blob()
  const url = URL.createObjectURL(new Blob([blob], { type: 'application/octet-stream' }))
  const name = new URL(panel.dataset.target, location.href).pathname.split('/').pop() || 'answer'
  const parts = [element('h2', {}, response.ok ? 'The answer' : `The answer: ${response.status}`)]
  if (/^image\/(png|jpeg|gif|webp|svg\+xml)/.test(type)) {
    parts.push(element('img', { src: URL.createObjectURL(blob), alt: 'The image that was bought' }))
  } else if (/json|^text\/|xml|javascript|^$/.test(type)) {
    const text = (await blob.text()).slice(0, shownMaxCharacters)
    parts.push(element('pre', { tabindex: '0' }, element('code', {}, pretty(text))))
  }
  const size = `${blob.size} bytes${type === '' ? '' : `, ${type}`}`
  const link = element('a', { href: url, download: name }, 'Download the answer')
  parts.push(element('p', {}, link, ` (${size})`))
  if (settlement?.success === true) parts.push(...receiptOf(settlement, panel))
  panel.querySelector('.result').replaceChildren(...parts)
  parts[0].tabIndex = -1
  parts[0].focus()
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2)
  } catch {
    return text
  }
}

function receiptOf(settlement, panel) {
  const { transaction, network, payer } = settlement
  const kept = { at: new Date().toISOString(), ...purchaseOf(panel), settlement }
  keepReceipt(kept)
  const file = new Blob([JSON.stringify(kept, undefined, 2)], { type: 'application/json' })
  const link = element(
    'a',
    {
      href: URL.createObjectURL(file),
      download: `receipt-${String(transaction).slice(2, 10)}.json`,
    },
    'Download the receipt',
  )
  return [
    element('h2', {}, 'Receipt'),
    facts([
      ['transaction', transaction],
      ['network', network],
      ['paid by', payer],
    ]),
    element('p', {}, link, ' (it is kept in this browser, too)'),
    json('The whole receipt', settlement),
  ]
}
