// Signs a payment of an offer as x402 (exact, by EIP-3009 or Permit2) with a wallet.

const permit2 = '0x000000000022D473030F116dDEE9F6B43aC78BA3'
/** The only contract that may take money through Permit2: x402ExactPermit2Proxy. */
const permit2Proxy = '0x402085c248EeA27D92E8b30b2C58ed07f9E20001'
/** A page cannot make a wallet sign anything that is valid for longer, seconds. */
const validMaxSeconds = 300

const bytesOf = (text) => new TextEncoder().encode(text)
const base64 = (text) => btoa(String.fromCharCode(...bytesOf(text)))
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
const random = (bytes) => hex(crypto.getRandomValues(new Uint8Array(bytes)))
const word = (value) => BigInt(value).toString(16).padStart(64, '0')

/** JSON with sorted members, as mppx binds it into the nonce. */
function canonical(value) {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  const names = Object.keys(value).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(',')}}`
}

const base64url = (text) =>
  base64(text).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')

/** The structs that are signed: the names of their members by type, in the order of EIP-712. */
const structs = {
  TransferWithAuthorization: [
    ['address', 'from', 'to'],
    ['uint256', 'value', 'validAfter', 'validBefore'],
    ['bytes32', 'nonce'],
  ],
  Permit: [
    ['address', 'owner', 'spender'],
    ['uint256', 'value', 'nonce', 'deadline'],
  ],
  PermitWitnessTransferFrom: [
    ['TokenPermissions', 'permitted'],
    ['address', 'spender'],
    ['uint256', 'nonce', 'deadline'],
    ['Witness', 'witness'],
  ],
  TokenPermissions: [
    ['address', 'token'],
    ['uint256', 'amount'],
  ],
  Witness: [
    ['address', 'to'],
    ['uint256', 'validAfter'],
  ],
}

/** A struct with those that its members have. */
function typesOf(struct) {
  const members = structs[struct].flatMap(([type, ...names]) =>
    names.map((name) => ({ name, type })),
  )
  const inner = members.filter(({ type }) => type in structs)
  return Object.assign({ [struct]: members }, ...inner.map(({ type }) => typesOf(type)))
}

async function sign(provider, payer, domain, primaryType, message) {
  const domainTypes = { chainId: 'uint256', verifyingContract: 'address' }
  const fields = Object.keys(domain).map((name) => ({ name, type: domainTypes[name] ?? 'string' }))
  const types = { EIP712Domain: fields, ...typesOf(primaryType) }
  const text = JSON.stringify({ types, domain, primaryType, message })
  const refused = 'You did not sign. Nothing was paid.'
  const signature = await ask(provider, 'eth_signTypedData_v4', [payer, text], refused)
  if (!/^0x[0-9a-fA-F]{130,}$/.test(signature))
    throw new Stopped('The wallet gave no signature. Nothing was paid.')
  return signature
}

/** Whether an offer of the 402 is of a form that this page signs. */
function isSignable({ amount, payTo, extra }) {
  const { assetTransferMethod: method, spender = '' } = extra ?? {}
  const isOwn = spender.toLowerCase() === permit2Proxy.toLowerCase()
  return (
    /^[1-9]\d{0,77}$/.test(amount) &&
    /^0x[0-9a-fA-F]{40}$/.test(payTo) &&
    (method === 'eip3009' || (method === 'permit2' && isOwn))
  )
}

/** The token's own domain of an offer. */
function domainOf({ network, accepted }) {
  const { name, version } = accepted.extra
  return { name, version, chainId: Number(network.chain), verifyingContract: accepted.asset }
}

/** The x402 payment of an offer, signed by the wallet. */
async function payOffer(provider, payer, offer, { resource, extensions, aheadMs }) {
  const { accepted } = offer
  const nonce = random(32)
  const echoed = { ...extensions }
  if (echoed.mppx) echoed.mppx = { ...echoed.mppx, info: { ...echoed.mppx.info, nonce } }
  const seconds = Math.min(Number(accepted.maxTimeoutSeconds), validMaxSeconds)
  const validBefore = String(Math.floor((Date.now() + aheadMs) / 1000) + seconds)
  const isPermit2 = accepted.extra.assetTransferMethod === 'permit2'
  const pay = isPermit2 ? payByPermit2 : payByAuthorization
  const terms = { nonce, validBefore, resource, extensions: echoed }
  const { payload, more } = await pay(provider, payer, offer, terms)
  const all = { ...echoed, ...more }
  return base64(JSON.stringify({ x402Version: 2, resource, accepted, payload, extensions: all }))
}

async function payByAuthorization(provider, payer, offer, terms) {
  const { accepted } = offer
  const { nonce, validBefore, resource, extensions } = terms
  const message = {
    from: payer,
    to: accepted.payTo,
    value: accepted.amount,
    validAfter: '0',
    validBefore,
    nonce: extensions.mppx ? await boundNonce(accepted, resource, extensions) : `0x${nonce}`,
  }
  const primaryType = 'TransferWithAuthorization'
  const signature = await sign(provider, payer, domainOf(offer), primaryType, message)
  return { payload: { authorization: message, signature } }
}

/** With the salt of mppx the nonce is a hash of all that is bought, so that it pays for nothing else. */
async function boundNonce(accepted, resource, extensions) {
  if (crypto.subtle === undefined)
    throw new Stopped('Paying needs a page on https or on localhost.')
  const text = [accepted, resource, extensions].map((part) => base64url(canonical(part))).join('|')
  const digest = await crypto.subtle.digest('SHA-256', bytesOf(text))
  return `0x${hex(new Uint8Array(digest))}`
}

async function payByPermit2(provider, payer, offer, { nonce, validBefore, extensions }) {
  const { network, accepted } = offer
  const { asset, amount, payTo } = accepted
  const deadline = validBefore
  const allowance = await view(provider, asset, `0xdd62ed3e${word(payer)}${word(permit2)}`)
  const isAllowed = allowance >= BigInt(amount)
  if (!isAllowed && extensions.eip2612GasSponsoring === undefined) {
    const has = decimal(allowance, network.decimals)
    throw new Stopped(
      `Permit2 may take ${has} ${network.symbol} of ${short(payer)} on ${network.name}, and the price is ${decimal(amount, network.decimals)}. Approve ${permit2} for this token, then pay again. Nothing was paid.`,
    )
  }
  const message = {
    permitted: { token: asset, amount },
    spender: permit2Proxy,
    nonce: BigInt(`0x${nonce}`).toString(),
    deadline,
    witness: { to: payTo, validAfter: '0' },
  }
  const domain = { name: 'Permit2', chainId: Number(network.chain), verifyingContract: permit2 }
  const primaryType = 'PermitWitnessTransferFrom'
  const more = isAllowed ? {} : await permitFor(provider, payer, offer, { deadline, extensions })
  const signature = await sign(provider, payer, domain, primaryType, message)
  return { payload: { permit2Authorization: { from: payer, ...message }, signature }, more }
}

/** EIP-2612: allows Permit2 exactly the price, by a signature and without gas. */
async function permitFor(provider, payer, offer, { deadline, extensions }) {
  const { asset, amount } = offer.accepted
  const nonce = String(await view(provider, asset, `0x7ecebe00${word(payer)}`))
  const message = { owner: payer, spender: permit2, value: amount, nonce, deadline }
  const signature = await sign(provider, payer, domainOf(offer), 'Permit', message)
  const { owner: from, value: _, ...signed } = message
  const info = { from, asset, amount, ...signed, signature, version: '1' }
  return { eip2612GasSponsoring: { ...extensions.eip2612GasSponsoring, info } }
}
