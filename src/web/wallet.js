// Runs in browsers as it stands, after script.js, whose functions it uses. It pays a 402 by x402 with
// a wallet of the browser (EIP-6963, EIP-1193). It builds no markup from text.
/* global decimal, decode, element, facts, json */

const permit2 = '0x000000000022D473030F116dDEE9F6B43aC78BA3'
/** A page cannot make a wallet sign anything that is valid for longer, seconds. */
const validMaxSeconds = 300
/** How long an unfinished payment is kept: as long as its answer can be fetched, ms. */
const keptMs = 24 * 60 * 60 * 1000
const shownMaxCharacters = 200_000

/** Wallets that announced themselves, by their uuid. */
const wallets = new Map()
addEventListener('eip6963:announceProvider', ({ detail }) => {
  if (typeof detail?.provider?.request !== 'function') return
  wallets.set(String(detail.info?.uuid), { info: detail.info ?? {}, provider: detail.provider })
  dispatchEvent(new Event('turnpike:wallets'))
})
dispatchEvent(new Event('eip6963:requestProvider'))

/** Why a purchase stopped. `isOver`: no payment of it can be settled any more, or none was signed. */
class Stopped extends Error {
  constructor(message, { isOver = true, details = [] } = {}) {
    super(message)
    this.isOver = isOver
    this.details = details
  }
}

function walletsNow() {
  const announced = [...wallets.values()]
  const legacy = window.ethereum
  if (announced.length > 0 || typeof legacy?.request !== 'function') return announced
  return [{ info: { name: 'Browser wallet' }, provider: legacy }]
}

/** Icons come from strangers. An image cannot run scripts; nothing is loaded from a host. */
function iconOf({ icon }) {
  const isImage = /^data:image\/(png|jpeg|webp|gif|svg\+xml)[;,]/.test(String(icon))
  return isImage && icon.length < 100_000 ? [element('img', { src: icon, alt: '' })] : []
}

/** The purchase that this page knows of a request, as it was kept before it was sent. */
function storeOf({ method, target, body }) {
  const key = `turnpike:${method} ${target} ${body}`
  return {
    read() {
      try {
        const kept = JSON.parse(localStorage.getItem(key))
        if (kept?.keptAt > Date.now() - keptMs) return kept
      } catch {
        // Nothing that can be used.
      }
      return undefined
    },
    write: (kept) => localStorage.setItem(key, JSON.stringify({ ...kept, keptAt: Date.now() })),
    remove: () => localStorage.removeItem(key),
  }
}

function keepReceipt(receipt) {
  const key = 'turnpike:receipts'
  let kept = []
  try {
    kept = JSON.parse(localStorage.getItem(key)) ?? []
  } catch {
    // Start again.
  }
  localStorage.setItem(key, JSON.stringify([receipt, ...kept].slice(0, 50)))
}

const encodeJson = (value) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value))))
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
const random = (bytes) => hex(crypto.getRandomValues(new Uint8Array(bytes)))
const word = (value) => BigInt(value).toString(16).padStart(64, '0')
const short = (address) => `${address.slice(0, 6)}…${address.slice(-4)}`

/** JSON with sorted members, as mppx binds it into the nonce. */
function canonical(value) {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  const names = Object.keys(value).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(',')}}`
}

const base64url = (text) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '')

/** What a 402 asks for: its offers that this page can pay, and what the payment must echo. */
async function readOffers(response, networks) {
  const required = decode(response.headers.get('payment-required'))
  const body = await response.json()
  const offers = []
  for (const network of networks) {
    const own = (body.accepts ?? required.accepts).filter(
      (each) =>
        each.scheme === 'exact' &&
        each.network === network.id &&
        each.asset.toLowerCase() === network.asset.toLowerCase(),
    )
    // EIP-3009 needs no allowance.
    const accepted = own.find(({ extra }) => extra.assetTransferMethod === 'eip3009') ?? own[0]
    if (accepted !== undefined) offers.push({ network, accepted })
  }
  const { resource, extensions } = required
  return { offers, resource, extensions, invalidParams: body.invalidParams ?? [] }
}

function amountOf({ network, accepted }) {
  return `${decimal(accepted.amount, network.decimals)} ${network.symbol} on ${network.name}`
}

/** Asks the wallet; a refusal of its user is told as one. */
async function ask(provider, method, params, refused) {
  try {
    return await provider.request({ method, params })
  } catch (error) {
    if (error?.code === 4001) throw new Stopped(refused)
    throw error
  }
}

async function selectNetwork(provider, network) {
  const chainId = `0x${Number(network.chain).toString(16)}`
  if (Number(await provider.request({ method: 'eth_chainId' })) === Number(network.chain)) return
  const refused = `The wallet stayed on another network. Nothing was paid: switch it to ${network.name}.`
  try {
    await ask(provider, 'wallet_switchEthereumChain', [{ chainId }], refused)
  } catch (error) {
    const isUnknown = error?.code === 4902 || error?.data?.originalError?.code === 4902
    if (!isUnknown || network.rpc === undefined) {
      if (error instanceof Stopped) throw error
      throw new Stopped(
        `The wallet does not know ${network.name} (chain ${network.chain}). Add it, then pay again.`,
      )
    }
    const chain = {
      chainId,
      chainName: network.name,
      rpcUrls: [network.rpc],
      nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
    }
    await ask(provider, 'wallet_addEthereumChain', [chain], refused)
    await ask(provider, 'wallet_switchEthereumChain', [{ chainId }], refused)
  }
  if (Number(await provider.request({ method: 'eth_chainId' })) !== Number(network.chain))
    throw new Stopped(refused)
}

/** A word that a view function of a token answers. */
async function view(provider, to, data) {
  const answer = await provider.request({ method: 'eth_call', params: [{ to, data }, 'latest'] })
  return BigInt(answer === '0x' ? 0 : answer)
}

async function assertFunds(provider, payer, { network, accepted }) {
  const balance = await view(provider, accepted.asset, `0x70a08231${word(payer)}`)
  if (balance >= BigInt(accepted.amount)) return
  const has = decimal(balance, network.decimals)
  const needs = decimal(accepted.amount, network.decimals)
  throw new Stopped(
    `${short(payer)} has ${has} ${network.symbol} on ${network.name}, and the price is ${needs}. Nothing was paid.`,
  )
}

const types = {
  transfer: [
    'from address',
    'to address',
    'value uint256',
    'validAfter uint256',
    'validBefore uint256',
    'nonce bytes32',
  ],
  permit: [
    'owner address',
    'spender address',
    'value uint256',
    'nonce uint256',
    'deadline uint256',
  ],
  permit2: [
    'permitted TokenPermissions',
    'spender address',
    'nonce uint256',
    'deadline uint256',
    'witness Witness',
  ],
  permissions: ['token address', 'amount uint256'],
  witness: ['to address', 'validAfter uint256'],
}

function fieldsOf(list) {
  return list.map((text) => ({ name: text.split(' ')[0], type: text.split(' ')[1] }))
}

async function sign(provider, payer, { domain, primaryType, message, structs }) {
  const fields = Object.entries(domain).map(([name]) => {
    return { name, type: { chainId: 'uint256', verifyingContract: 'address' }[name] ?? 'string' }
  })
  const named = Object.entries(structs).map(([name, list]) => [name, fieldsOf(list)])
  const data = {
    types: { EIP712Domain: fields, ...Object.fromEntries(named) },
    domain,
    primaryType,
    message,
  }
  const refused = 'You did not sign. Nothing was paid.'
  return ask(provider, 'eth_signTypedData_v4', [payer, JSON.stringify(data)], refused)
}

/** The token's own domain of an offer. */
function domainOf({ network, accepted }) {
  const { name, version } = accepted.extra
  return { name, version, chainId: Number(network.chain), verifyingContract: accepted.asset }
}

/** The x402 payment of an offer, signed by the wallet. */
async function payOffer(provider, payer, offer, { resource, extensions }) {
  const { accepted } = offer
  const nonce = random(32)
  const echoed = { ...extensions }
  if (echoed.mppx) echoed.mppx = { ...echoed.mppx, info: { ...echoed.mppx.info, nonce } }
  const seconds = Math.min(Number(accepted.maxTimeoutSeconds), validMaxSeconds)
  const validBefore = String(Math.floor(Date.now() / 1000) + seconds)
  const made =
    accepted.extra.assetTransferMethod === 'permit2'
      ? await payByPermit2(provider, payer, offer, {
          nonce,
          deadline: validBefore,
          extensions: echoed,
        })
      : await payByAuthorization(provider, payer, offer, {
          nonce,
          validBefore,
          resource,
          extensions: echoed,
        })
  const { payload, more } = made
  const payment = {
    x402Version: 2,
    resource,
    accepted,
    payload,
    extensions: { ...echoed, ...more },
  }
  return { credential: encodeJson(payment), validBefore: Number(validBefore) }
}

async function payByAuthorization(
  provider,
  payer,
  offer,
  { nonce, validBefore, resource, extensions },
) {
  const { accepted } = offer
  const message = {
    from: payer,
    to: accepted.payTo,
    value: accepted.amount,
    validAfter: '0',
    validBefore,
    nonce: extensions.mppx ? await boundNonce(accepted, resource, extensions) : `0x${nonce}`,
  }
  const structs = { TransferWithAuthorization: types.transfer }
  const primaryType = 'TransferWithAuthorization'
  const signature = await sign(provider, payer, {
    domain: domainOf(offer),
    primaryType,
    message,
    structs,
  })
  return { payload: { authorization: message, signature } }
}

/** With the salt of mppx the nonce is a hash of all that is bought, so that it pays for nothing else. */
async function boundNonce(accepted, resource, extensions) {
  if (crypto.subtle === undefined)
    throw new Stopped('Paying needs a page on https or on localhost.')
  const text = [accepted, resource, extensions].map((part) => base64url(canonical(part))).join('|')
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))
  return `0x${hex(new Uint8Array(digest))}`
}

async function payByPermit2(provider, payer, offer, { nonce, deadline, extensions }) {
  const { network, accepted } = offer
  const { asset, amount, payTo, extra } = accepted
  const allowance = await view(provider, asset, `0xdd62ed3e${word(payer)}${word(permit2)}`)
  const isAllowed = allowance >= BigInt(amount)
  if (!isAllowed && extensions.eip2612GasSponsoring === undefined) {
    const has = decimal(allowance, network.decimals)
    throw new Stopped(
      `Permit2 may take ${has} ${network.symbol} of ${short(payer)} on ${network.name}, and the price is ${decimal(amount, network.decimals)}. Approve ${permit2} for this token, then pay again. Nothing was paid.`,
    )
  }
  const permitted = { token: asset, amount }
  const witness = { to: payTo, validAfter: '0' }
  const message = {
    permitted,
    spender: extra.spender,
    nonce: BigInt(`0x${nonce}`).toString(),
    deadline,
    witness,
  }
  const structs = {
    PermitWitnessTransferFrom: types.permit2,
    TokenPermissions: types.permissions,
    Witness: types.witness,
  }
  const domain = { name: 'Permit2', chainId: Number(network.chain), verifyingContract: permit2 }
  const primaryType = 'PermitWitnessTransferFrom'
  const more = isAllowed ? {} : await permitFor(provider, payer, offer, { deadline, extensions })
  const signature = await sign(provider, payer, { domain, primaryType, message, structs })
  return { payload: { permit2Authorization: { from: payer, ...message }, signature }, more }
}

/** EIP-2612: allows Permit2 exactly the price, by a signature and without gas. */
async function permitFor(provider, payer, offer, { deadline, extensions }) {
  const { asset, amount } = offer.accepted
  const nonce = String(await view(provider, asset, `0x7ecebe00${word(payer)}`))
  const message = { owner: payer, spender: permit2, value: amount, nonce, deadline }
  const structs = { Permit: types.permit }
  const domain = domainOf(offer)
  const signature = await sign(provider, payer, { domain, primaryType: 'Permit', message, structs })
  const info = {
    from: payer,
    asset,
    spender: permit2,
    amount,
    nonce,
    deadline,
    signature,
    version: '1',
  }
  return { eip2612GasSponsoring: { ...extensions.eip2612GasSponsoring, info } }
}

/** Sends the request; `headers` carry the payment. Only what is sold here can be asked for. */
function send({ method, target, body }, headers) {
  const hasBody = method !== 'GET' && body !== ''
  return fetch(target, {
    method,
    credentials: 'omit',
    redirect: 'error',
    cache: 'no-store',
    headers: { ...(hasBody ? { 'content-type': 'application/json' } : {}), ...headers },
    ...(hasBody ? { body } : {}),
  })
}

async function problemOf(response) {
  try {
    return await response.json()
  } catch {
    return {}
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms))
/** How long an unfinished settlement is asked for before the button asks, ms. */
const patienceMs = 120_000

/**
 * Presents a kept payment until it has an answer. The same payment may be sent any number of times:
 * it moves money once.
 */
async function finish(purchase, store, say) {
  const until = Date.now() + patienceMs
  for (;;) {
    const kept = store.read()
    if (kept === undefined) throw new Stopped('This payment is not kept any more.')
    const headers = kept.redeem
      ? { 'payment-redeem': kept.redeem }
      : { 'payment-signature': kept.credential, 'idempotency-key': kept.key }
    let response
    try {
      response = await send(purchase, headers)
    } catch {
      throw new Stopped('The connection failed. Ask again with the same payment.', {
        isOver: false,
      })
    }
    const settlement = settlementOf(response)
    // An upstream's own 404 was delivered and paid for.
    if (response.ok || (settlement?.success === true && response.status < 500))
      return { response, settlement }
    const problem = await problemOf(response)
    const { code, detail = `The answer was ${response.status}.` } = problem
    if (problem.redeem?.token) store.write({ ...kept, redeem: problem.redeem.token })
    if (code === 'settlement-pending' || code === 'payment-in-progress') {
      if (Date.now() > until) throw new Stopped(detail, { isOver: false })
      say('The payment was sent. Waiting for its confirmation ...')
      await pause(Math.min(Number(response.headers.get('retry-after')) || 1, 10) * 1000)
      continue
    }
    if (response.status >= 500 || response.status === 429)
      throw new Stopped(detail, { isOver: false })
    // A payment whose answer is owed is kept until it is exhausted.
    if (kept.redeem === undefined || response.status === 410) store.remove()
    const details = (problem.invalidParams ?? []).map(({ name, reason }) => `${name}: ${reason}`)
    throw new Stopped(detail, { isOver: store.read() === undefined, details })
  }
}

/** What `PAYMENT-RESPONSE` says: whether it was settled, by which transaction, and the signed receipt. */
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
  say('Asking for the price ...')
  const quote = await send(purchase, {})
  if (quote.status !== 402) {
    const { detail = `The answer was ${quote.status}.`, invalidParams = [] } =
      await problemOf(quote)
    throw new Stopped(detail, {
      details: invalidParams.map(({ name, reason }) => `${name}: ${reason}`),
    })
  }
  const asked = await readOffers(quote, JSON.parse(panel.dataset.networks))
  if (asked.invalidParams.length > 0) {
    const details = asked.invalidParams.map(({ name, reason }) => `${name}: ${reason}`)
    throw new Stopped('This request would be refused. Nothing was paid.', { details })
  }
  const { provider } = wallet
  say('Confirm the connection in your wallet ...')
  const refused = 'You did not connect the wallet. Nothing was paid.'
  const [payer] = await ask(provider, 'eth_requestAccounts', [], refused)
  if (!/^0x[0-9a-fA-F]{40}$/.test(payer)) throw new Stopped('The wallet has no account.')
  const offer = await choose(panel, provider, asked.offers)
  await selectNetwork(provider, offer.network)
  await assertFunds(provider, payer, offer)
  say(`Sign in your wallet: ${amountOf(offer)}, to ${short(offer.accepted.payTo)}.`)
  const { credential } = await payOffer(provider, payer, offer, asked)
  // Kept before it is sent: whatever happens to this page, nothing is signed a second time.
  store.write({ credential, key: random(16), what: amountOf(offer), payer })
  say(`Paying ${amountOf(offer)} ...`)
  return finish(purchase, store, say)
}

/** The chosen network, or by default the wallet's own if that is offered. */
async function choose(panel, provider, offers) {
  const wanted = panel.querySelector('select').value
  const current = wanted === '' ? Number(await provider.request({ method: 'eth_chainId' })) : 0
  const isWanted = ({ network }) =>
    wanted === '' ? Number(network.chain) === current : network.id === wanted
  const offer = offers.find(isWanted) ?? (wanted === '' ? offers[0] : undefined)
  if (offer === undefined) throw new Stopped('This network is not offered now. Choose another one.')
  return offer
}

function purchaseOf(panel) {
  const { method, target, body } = panel.dataset
  return { method, target, body }
}

/** Shows an answer as text or as an image, never as markup, and lets the user store it. */
async function present(panel, { response, settlement }) {
  const type = response.headers.get('content-type') ?? ''
  const blob = await response.blob()
  const url = URL.createObjectURL(new Blob([blob], { type: 'application/octet-stream' }))
  const name = new URL(panel.dataset.target, location.href).pathname.split('/').pop() || 'answer'
  const parts = [element('h3', {}, response.ok ? 'The answer' : `The answer: ${response.status}`)]
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
    element('h3', {}, 'Receipt'),
    facts([
      ['transaction', transaction],
      ['network', network],
      ['paid by', payer],
    ]),
    element('p', {}, link, ' (it is kept in this browser, too)'),
    json('The whole receipt', settlement),
  ]
}

/** Runs one purchase, or goes on with the kept one, and tells how it ended. */
async function run(panel, wallet) {
  if (panel.dataset.busy === 'true') return
  const store = storeOf(purchaseOf(panel))
  const status = panel.querySelector('.progress')
  const say = (text, className = '') => {
    status.className = `progress ${className}`
    status.replaceChildren(text)
  }
  panel.dataset.busy = 'true'
  for (const button of panel.querySelectorAll('button')) button.disabled = true
  try {
    const kept = store.read()
    if (kept !== undefined) say(`Asking again with the payment of ${kept.what} ...`)
    const done = kept
      ? await finish(purchaseOf(panel), store, say)
      : await buy(panel, wallet, store, say)
    await present(panel, done)
    store.remove()
    say('Paid and delivered.', 'good')
    panel.dispatchEvent(new CustomEvent('turnpike:paid', { detail: done }))
  } catch (error) {
    const isKnown = error instanceof Stopped
    say(
      isKnown ? error.message : `The wallet said: ${String(error?.message ?? error).slice(0, 300)}`,
      'bad',
    )
    const list = (isKnown ? error.details : []).map((text) =>
      element('p', { class: 'fault' }, text),
    )
    status.append(...list)
  } finally {
    panel.dataset.busy = 'false'
    offer(panel)
  }
}

/** The buttons of a panel: one for each wallet, or one to go on with a payment that is kept. */
function offer(panel) {
  if (panel.dataset.busy === 'true') return
  const place = panel.querySelector('.wallets')
  const kept = storeOf(purchaseOf(panel)).read()
  panel.querySelector('label').hidden = kept !== undefined
  if (kept !== undefined) {
    const note = kept.redeem
      ? `You paid ${kept.what}, and the answer was not delivered yet. Fetching it again costs nothing.`
      : `You signed a payment of ${kept.what}, and its answer did not arrive. Asking again does not pay twice.`
    const button = element(
      'button',
      { type: 'button', onclick: () => run(panel) },
      'Fetch the answer',
    )
    place.replaceChildren(element('p', {}, note), button)
    return
  }
  const found = walletsNow()
  const buttons = found.map((wallet) => {
    const name = String(wallet.info.name ?? 'wallet').slice(0, 40)
    const start = () => run(panel, wallet)
    return element(
      'button',
      { type: 'button', onclick: start },
      ...iconOf(wallet.info),
      `Pay with ${name}`,
    )
  })
  const none = element(
    'p',
    {},
    'This browser has no wallet. Install one that holds stablecoins, or pay by a command.',
  )
  place.replaceChildren(...(buttons.length > 0 ? buttons : [none]))
}

function prepare(panel) {
  panel.hidden = false
  offer(panel)
  addEventListener('turnpike:wallets', () => offer(panel))
  panel.addEventListener('turnpike:changed', () => offer(panel))
}

for (const panel of document.querySelectorAll('.wallet')) prepare(panel)
