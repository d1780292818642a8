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

/** The sentence for the state of a paid order. */
const orderSteps = {
  settling: 'The payment is being confirmed',
  settled: 'The payment is confirmed, and your tokens are bought next',
  swapping: 'Your tokens are being bought, usually within a minute',
  refunding: 'The order could not be filled, and your money is on its way back',
}

/** The meaning of an order's end for its buyer. */
const orderEnds = {
  delivered: ['The order is delivered: the tokens are at your address.', 'good'],
  refunded: ['The order was not filled, and the whole amount came back to you.', 'fair'],
  held: ['The order is held until its operator decides. You need not pay again.', 'fair'],
  failed: ['The transfer did not happen. Nothing was paid.', 'bad'],
}

/** An order that has ended: a sentence, its transactions, and all that it says. */
function orderParts(text, { explorer, symbol: coin = '' }) {
  const order = JSON.parse(text)
  const { id, status, symbol, deliveredShares, usdg, total = usdg, returned = total } = order
  const sentences = {
    delivered:
      deliveredShares &&
      `You received ${sixDigits(deliveredShares)} ${symbol} for ${sixDigits(total)} ${coin}.`,
    refunded:
      total && `${sixDigits(returned)} ${coin} came back to your address. You can order again.`,
    held: 'The money waits with the operator, who delivers the tokens or sends it back. For questions, name this order:',
  }
  const pairs = [
    ['order', id],
    ['bought in', order.swapTx, explorer],
    ['sent back in', order.refundTx, explorer],
  ]
  return [
    element('p', {}, sentences[status] || ''),
    facts(pairs.filter(([, value]) => value !== undefined)),
    json('The whole order', text),
  ]
}

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
