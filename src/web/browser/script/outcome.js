// What a page shows during a payment, and of its result.

/** The title of the part of the page that a panel is in. */
const headingOf = (panel) => panel.parentElement.querySelector('h2, h3')

const isOrder = (panel) => headingOf(panel).id === 'order'

/**
 * `state`: of stateOf before and after; 'busy' until something is signed, 'sent' after that. style.css
 * hides what would pay a second time, and what helps only in another state.
 */
function showState(panel, state, title) {
  document.querySelector('main').dataset.pay = state
  const heading = headingOf(panel)
  heading.dataset.first ??= heading.textContent
  heading.textContent = title ?? heading.dataset.first
  // A value that is entered during a payment would belong to another request.
  const isBusy = state === 'busy' || state === 'sent'
  for (const each of document.querySelectorAll('form, .stocks')) each.inert = isBusy
}

/** The text of the status in a browser without a wallet. */
function noWallet() {
  const find = { href: 'https://ethereum.org/wallets/find-wallet/', rel: 'noreferrer' }
  return [
    'This browser has no wallet. ',
    element('a', find, 'Find a browser wallet'),
    ' and reload this page, or ',
    element('a', { href: '#programs' }, 'pay from a program'),
    '.',
  ]
}

/** An amount in six digits; the order itself shows all of them. */
const sixDigits = (amount) => String(Number(Number(amount).toPrecision(6)))

/** What the table of web/public/OrderState.ts says of a state. */
const orderStateOf = (state) =>
  JSON.parse(document.querySelector('[data-orders]')?.dataset.orders ?? '{}')[state] ?? {}

/** An order that has ended: a sentence, its transactions, and all that it says. */
function orderParts(text, { explorer, symbol: coin = '' }) {
  const order = JSON.parse(text)
  const { id, status, usdg, total = usdg, returned = total } = order
  const values = { ...order, coin, total, returned }
  const sentence = (orderStateOf(status).detail ?? '').replace(/\{(\w+)\}/g, (_, name) =>
    /^[0-9.]+$/.test(values[name]) ? sixDigits(values[name]) : values[name],
  )
  const pairs = [
    ['order', id],
    ['bought in', order.swapTx, explorer],
    ['sent back in', order.refundTx, explorer],
  ]
  return [
    element('p', {}, sentence),
    facts(pairs.filter(([, value]) => value !== undefined)),
    element('p', {}, element('a', { href: `/orders/${id}` }, 'The page of this order')),
    json('The whole order', text),
  ]
}

/** What was paid to whom and when, by the settlement and its signed receipt. */
function paidSentence({ amount, at, seller }, { symbol, decimals }) {
  if (symbol === undefined || !/^\d+$/.test(amount)) return ''
  const time = at.slice(0, 16).replace('T', ' ')
  return `You paid ${decimal(amount, decimals)} ${symbol} to ${seller}, ${time} UTC.`
}

/** A receipt as it is kept, to read and to print. */
function receiptParts(kept, known, isKept) {
  const { transaction, network, payer, payTo } = kept
  const file = new Blob([JSON.stringify(kept, undefined, 2)], { type: 'application/json' })
  const href = URL.createObjectURL(file)
  const download = `receipt-${String(transaction).slice(2, 10)}.json`
  const link = element('a', { href, download }, 'Download the receipt')
  const print = element('button', { type: 'button', class: 'plain print' }, 'Print')
  return element(
    'section',
    { class: 'receipt' },
    element('h2', {}, 'Receipt'),
    element('p', {}, paidSentence(kept, known)),
    facts([
      ['your payment', transaction, known.explorer],
      ['network', known.name ?? network],
      ['paid by', payer],
      ['paid to', payTo],
    ]),
    element('p', { class: 'actions' }, print, link),
    element('p', { class: 'hint' }, isKept ? 'This browser keeps it, too.' : ''),
    json('The whole receipt', kept),
  )
}

document.addEventListener('click', ({ target }) => {
  if (target.closest?.('.print')) print()
})
// The page of an order that has not ended.
if (document.querySelector('.receipt[data-open]')) setTimeout(() => location.reload(), 5000)

/**
 * The URL of an image. A blob is a document of our origin when it is opened in a tab of its own, and
 * an SVG runs scripts there: as data it has no origin.
 */
function imageOf(blob, type) {
  const typed = new Blob([blob], { type })
  if (type.toLowerCase() !== 'image/svg+xml') return URL.createObjectURL(typed)
  return new Promise((done) => {
    const reader = new FileReader()
    reader.onload = () => done(reader.result)
    reader.readAsDataURL(typed)
  })
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2)
  } catch {
    return text
  }
}
