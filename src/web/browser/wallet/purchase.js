// Buys: asks for the price, has it signed, and presents the payment until it has an answer.

/** The offers of a 402 that this page can pay, and the values that the payment must echo. */
async function readOffers(response, networks) {
  const required = decode(response.headers.get('payment-required'))
  const body = await response.json()
  const offers = []
  for (const network of networks) {
    // Beside offers of x402 version 1 the others are a member of their own.
    const own = ((body.x402 ?? body).accepts ?? required.accepts).filter(
      (each) =>
        each.scheme === 'exact' &&
        each.network === network.id &&
        each.asset.toLowerCase() === network.asset.toLowerCase() &&
        isSignable(each),
    )
    // EIP-3009 needs no allowance.
    const accepted = own.find(({ extra }) => extra.assetTransferMethod === 'eip3009') ?? own[0]
    if (accepted !== undefined) offers.push({ network, accepted })
  }
  const { resource, extensions } = required
  const aheadMs = aheadOf(response)
  return { offers, resource, extensions, aheadMs, details: faultsOf(body) }
}

/** How far the clock of the service is ahead of this one, ms: a payment is valid for minutes. */
function aheadOf({ headers }) {
  const aheadMs = Date.parse(headers.get('date')) - Date.now()
  return Math.abs(aheadMs) < 24 * 60 * 60 * 1000 ? aheadMs : 0
}

/** Refuses to sign an amount above the price that the page has shown. */
function assertPrice(offer) {
  const { network, accepted } = offer
  if (network.amount === undefined || BigInt(accepted.amount) <= BigInt(network.amount)) return
  const seen = `${decimal(network.amount, network.decimals)} ${network.symbol}`
  throw new Stopped(
    `The price is ${amountOf(offer)} now, and this page was made for ${seen}. Reload the page to see it. Nothing was paid.`,
  )
}

function amountOf({ network, accepted }) {
  return `${decimal(accepted.amount, network.decimals)} ${network.symbol} on ${network.name}`
}

async function problemOf(response) {
  try {
    const problem = await response.json()
    return typeof problem === 'object' && problem !== null ? problem : {}
  } catch {
    return {}
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms))
/** Time for which an unfinished settlement is requested without a press of the button, ms. */
const patienceMs = 120_000

/**
 * Presents a kept payment until it has an answer. The same payment may be sent any number of times:
 * it moves money once.
 */
async function finish(purchase, store, say) {
  const until = Date.now() + patienceMs
  for (;;) {
    const kept = store.read()
    if (kept === undefined) throw new Stopped('This payment is no longer kept.')
    const headers = kept.redeem
      ? { 'payment-redeem': kept.redeem }
      : { 'payment-signature': kept.credential, 'idempotency-key': kept.key }
    let response
    try {
      response = await send(purchase, headers)
    } catch {
      throw new Stopped('The connection failed. Your payment is kept.')
    }
    const settlement = settlementOf(response)
    // An upstream's own 404 was delivered and paid for. Proxies on the way can answer 200, too.
    if (settlement?.success === true && response.status < 500)
      return { response, settlement, credential: kept.credential }
    const problem = await problemOf(response)
    // Without locks, another window may present the same payment at the same time.
    const current = store.read()
    if (current?.credential !== kept.credential)
      throw new Stopped('This payment has ended in another window.')
    const {
      code,
      detail = `The answer was ${response.status}, and it did not come from this service.`,
    } = problem
    if (problem.redeem?.token) store.write({ ...kept, redeem: problem.redeem.token })
    else if (current.redeem !== kept.redeem) continue
    if (code === 'settlement-pending' || code === 'payment-in-progress') {
      if (Date.now() > until) throw new Stopped(detail)
      say('The payment was sent. Waiting for its confirmation: usually a few seconds ...')
      await pause(Math.min(Number(response.headers.get('retry-after')) || 1, 10) * 1000)
      continue
    }
    if (isLast(response, problem, kept)) store.remove(kept.credential)
    // The other sentences are for programs; the button does what they say.
    const [first] = problem.redeem?.token ? detail.split(/(?<=\.) /) : [detail]
    throw new Stopped(first.replace('The upstream', 'The seller'), { details: faultsOf(problem) })
  }
}

/**
 * Whether a payment can have no more effect. Only a verdict of the service about the payment says
 * so: a proxy on the way may refuse a request, and a route may be gone after it was paid.
 */
function isLast({ status }, { code, orderStatus }, { redeem }) {
  if (code === undefined) return false
  // An order that was given back.
  if (finalStates.includes(orderStatus)) return true
  return status === 410 || (redeem === undefined && (status === 402 || status === 400))
}

/**
 * The content of `PAYMENT-RESPONSE`: whether the payment was settled, by which transaction, and the
 * signed receipt.
 */
function settlementOf(response) {
  try {
    return decode(response.headers.get('payment-response'))
  } catch {
    return undefined
  }
}

/** Signs a payment, keeps it, and presents it. Returns the answer and its settlement. */
async function buy(panel, wallet, store, say) {
  const purchase = purchaseOf(panel)
  store.assertUsable()
  say('Asking for the price ...')
  const quote = await send(purchase, {}).catch(() => {
    throw new Stopped('The connection failed. Nothing was paid.')
  })
  if (quote.status !== 402) {
    const { detail = `The answer was ${quote.status}.`, ...problem } = await problemOf(quote)
    throw new Stopped(detail, { details: faultsOf(problem) })
  }
  const asked = await readOffers(quote, JSON.parse(panel.dataset.networks))
  const { details } = asked
  if (details.length > 0)
    throw new Stopped('This request would be refused. Nothing was paid.', { details })
  const { provider } = wallet
  say('Confirm the connection in your wallet ...')
  const refused = 'You did not connect the wallet. Nothing was paid.'
  const [payer] = await ask(provider, 'eth_requestAccounts', [], refused)
  if (!/^0x[0-9a-fA-F]{40}$/.test(payer)) throw new Stopped('The wallet has no account.')
  const offer = await choose(panel, provider, payer, asked.offers)
  say(`Confirm in your wallet: ${amountOf(offer)}, to ${short(offer.accepted.payTo)}.`)
  const credential = await payOffer(provider, payer, offer, asked)
  // Another window was faster: its payment is finished, and this one is never sent.
  if (store.read() !== undefined) return finish(purchase, store, say)
  // Kept before it is sent: whatever happens to this page, nothing is signed a second time.
  store.write({ credential, key: random(16), what: amountOf(offer), payer })
  showState(panel, 'sent', 'Paying')
  say(`Paying ${amountOf(offer)}: usually a few seconds ...`)
  return finish(purchase, store, say)
}

/**
 * The first offer that the wallet can pay: of the chosen network, or by default of the wallet's own and
 * then of the others. A wallet reads balances of one network only, so it switches to each.
 */
async function choose(panel, provider, payer, offers) {
  const select = panel.querySelector('select')
  const wanted = select.value
  const current = Number(await provider.request({ method: 'eth_chainId' }))
  const isOwn = ({ network }) => Number(network.chain) === current
  const able = offers
    .filter(({ network }) => wanted === '' || network.id === wanted)
    .sort((one, other) => isOwn(other) - isOwn(one))
  const faults = []
  for (const offer of able) {
    try {
      assertPrice(offer)
      await selectNetwork(provider, offer.network)
      await assertFunds(provider, payer, offer, wanted !== '' && offers.length > 1)
      select.value = offer.network.id
      return offer
    } catch (error) {
      faults.push(error instanceof Stopped ? error : new Stopped(told(error)))
    }
  }
  const gone = new Stopped('This network is not offered now. Choose another one.')
  const [first = gone, ...others] = faults
  first.details = others.map(told)
  throw first
}
