// "Try it": asks for the price of a request, and shows the 402.

const networks = JSON.parse(document.querySelector('[data-networks]')?.dataset.networks ?? '[]')

/** Amount in the asset's own unit and the network's name, for ids such as eip155:8453. */
function describe(id, asset, amount) {
  const known = networks.find((network) => network.id === id)
  if (known === undefined) return `${amount} of ${asset} on ${id}`
  const same = known.asset.toLowerCase() === String(asset).toLowerCase()
  if (!same || !/^\d+$/.test(amount)) return `${amount} of ${asset} on ${known.name}`
  return `${decimal(amount, known.decimals)} ${known.symbol} on ${known.name}`
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

/** What a wallet signs in place of a payment, where it may have something here. */
function showSignIn({ info, supportedChains }) {
  const { statement, domain, nonce, expirationTime } = info
  return [
    element('h5', {}, 'Or sign in: SIGN-IN-WITH-X'),
    facts([
      ['statement', statement],
      ['domain', domain],
      ['on', supportedChains.map(({ chainId }) => chainId).join(' or ')],
      ['nonce', nonce],
      ['expires', expirationTime],
    ]),
  ]
}

function showX402(required) {
  const signIn = required.extensions?.['sign-in-with-x']
  return [
    ...required.accepts.flatMap(({ network, asset, amount, payTo, extra, maxTimeoutSeconds }) => [
      element('h5', {}, describe(network, asset, amount)),
      facts([
        ['paid to', payTo],
        ['by', extra.assetTransferMethod],
        ['signed for at most', `${maxTimeoutSeconds} s`],
      ]),
    ]),
    ...(signIn === undefined ? [] : showSignIn(signIn)),
    json('The whole PAYMENT-REQUIRED', required),
  ]
}

const faultsOf = ({ invalidParams = [] }) =>
  invalidParams.map(({ name, reason }) => `${name}: ${reason}`)

function show(response, text, milliseconds) {
  const summary = `${response.status} ${response.statusText}`.trim()
  const time = element('span', { class: 'quiet' }, ` after ${milliseconds} ms`)
  const parts = [element('p', {}, element('strong', {}, summary), time)]
  const challenges = challengesOf(response.headers.get('www-authenticate'))
  const required = response.headers.get('payment-required')
  let body = text
  try {
    body = JSON.parse(text)
    parts.push(...faultsOf(body).map((text) => element('p', { class: 'fault' }, text)))
  } catch {
    // Shown as it is.
  }
  if (response.status === 402) {
    const next =
      'This is the price: press the button that pays, or send the request again with a payment.'
    parts.push(element('p', {}, next))
  }
  if (challenges.length > 0) {
    parts.push(element('h4', {}, 'MPP: WWW-Authenticate'), ...showMpp(challenges))
  }
  if (required !== null) {
    parts.push(element('h4', {}, 'x402: PAYMENT-REQUIRED'), ...showX402(decode(required)))
  }
  parts.push(json('The body', body))
  return parts
}

/** Sends the request; `headers` carry the payment. Only what is sold here can be asked for. */
function send({ method, target, body }, headers) {
  const hasBody = method !== 'GET' && body !== ''
  return fetch(target, {
    method,
    credentials: 'omit',
    redirect: 'error',
    cache: 'no-store',
    headers: { ...(hasBody && { 'content-type': 'application/json' }), ...headers },
    ...(hasBody && { body }),
  })
}

/** Sends the request without paying; only what is sold here can be asked for. */
async function askPrice(request, answer) {
  if (!request.target.startsWith('/m/')) {
    answer.replaceChildren(element('p', { class: 'fault' }, 'The request must begin with /m/.'))
    return
  }
  answer.replaceChildren(element('p', {}, 'Asking ...'))
  try {
    const startedAt = performance.now()
    const response = await send(request)
    const text = await response.text()
    answer.replaceChildren(...show(response, text, Math.round(performance.now() - startedAt)))
  } catch {
    answer.replaceChildren(element('p', { class: 'fault' }, 'There was no answer.'))
  }
}
