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
  const signature = await ask(
    provider,
    'eth_signTypedData_v4',
    [payer, JSON.stringify(data)],
    refused,
  )
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
  return base64(JSON.stringify(payment))
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
  const digest = await crypto.subtle.digest('SHA-256', bytesOf(text))
  return `0x${hex(new Uint8Array(digest))}`
}

async function payByPermit2(provider, payer, offer, { nonce, deadline, extensions }) {
  const { network, accepted } = offer
  const { asset, amount, payTo } = accepted
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
    spender: permit2Proxy,
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
