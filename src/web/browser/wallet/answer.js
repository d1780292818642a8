// Shows the bought answer.

const shownMaxCharacters = 200_000

const finalStates = ['delivered', 'refunded', 'held', 'failed']

/** Reads an order that was paid until it has ended. An operator decides about one that is held. */
async function followOrder(path, paid, say) {
  for (let waitMs = 1000; ; waitMs = Math.min(waitMs * 1.2, 15_000)) {
    const response = await readOrder(path)
    const { status } = (await response?.clone().json()) ?? {}
    if (finalStates.includes(status)) return { ...paid, response, state: status }
    say(`Paid. ${orderStateOf(status).text ?? 'The order continues.'}`)
    await pause(waitMs)
  }
}

/** Undefined while the service does not answer: the order continues without this page. */
async function readOrder(path) {
  try {
    const response = await fetch(path, { credentials: 'omit', cache: 'no-store' })
    const isOrder = response.ok && (response.headers.get('content-type') ?? '').includes('json')
    return isOrder ? response : undefined
  } catch {
    return undefined
  }
}

/** The path of the order that an answer has accepted; only the stock desk makes orders. */
function orderOf({ headers }) {
  const url = URL.parse(headers.get('location') ?? '', location.href)
  return url?.pathname.startsWith('/api/stock/order/') ? url.pathname : undefined
}

const imageType = /^(image\/(?:png|jpeg|gif|webp|svg\+xml))\s*(?:;|$)/i
const textType = /json|^text\/|xml|javascript|^$/

/** Shows an answer as text or as an image, never as markup, and lets the user store it. */
async function present(panel, paid, say) {
  const { response, settlement, state } = paid
  const type = response.headers.get('content-type') ?? ''
  const place = panel.querySelector('.result')
  // A visible title would repeat that of the panel.
  const { ok, status } = response
  const title = element('h2', ok ? { class: 'hidden' } : {}, `The answer${ok ? '' : `: ${status}`}`)
  const isText = textType.test(type)
  const { blob, isCut } = await receive(response, { place, title, isText }, say)
  const [, image] = imageType.exec(type) ?? []
  const parts = [title]
  if (image !== undefined) {
    const src = await imageOf(blob, image)
    parts.push(element('img', { src, alt: 'The image that was bought' }))
  } else if (isText) {
    const text = await blob.slice(0, 4 * shownMaxCharacters).text()
    const shown = pretty(text.slice(0, shownMaxCharacters))
    if (state) parts.push(...orderParts(shown, networkOf(panel, settlement)))
    else parts.push(element('pre', { tabindex: '0' }, element('code', {}, shown)))
  }
  const url = URL.createObjectURL(blob)
  const name = new URL(panel.dataset.target, location.href).pathname.split('/').pop() || 'answer'
  const size = `${blob.size} bytes${type === '' ? '' : `, ${type}`}`
  const link = element('a', { href: url, download: name }, 'Download the answer')
  parts.push(element('p', {}, link, ` (${size})`))
  if (settlement?.success === true) parts.push(receiptOf(paid, panel))
  place.replaceChildren(...parts)
  title.tabIndex = -1
  title.focus({ preventScroll: true })
  reveal(panel)
  if (isCut)
    throw new Stopped(
      'The answer was cut off. What arrived and the receipt are below. Fetch it again: that costs nothing, but a very long answer is not kept.',
    )
}

/** Height of an answer's title and first lines, CSS pixels. */
const seenPixels = 200

/** Scrolls to the title of a panel when the first lines of its answer are not in view. */
function reveal(panel) {
  const { top, height } = panel.querySelector('.result').getBoundingClientRect()
  const isSeen = top + Math.min(height, seenPixels) <= innerHeight
  const heading = headingOf(panel)
  if (heading.getBoundingClientRect().top >= 0 && isSeen) return
  const isCalm = matchMedia('(prefers-reduced-motion: reduce)').matches
  heading.scrollIntoView({ behavior: isCalm ? 'auto' : 'smooth' })
}

/**
 * Reads a body to its end, or until the user stops it: a stream of events may have none. `isCut`: the
 * connection broke before.
 */
async function receive({ body }, { place, title, isText }, say) {
  const chunks = []
  const end = (isCut) => ({ blob: new Blob(chunks, { type: 'application/octet-stream' }), isCut })
  const reader = body?.getReader()
  if (reader === undefined) return end(false)
  const code = element('code')
  const decoder = new TextDecoder()
  const stop = element('button', { type: 'button', onclick: () => reader.cancel() }, 'Stop here')
  place.replaceChildren(title, element('pre', { tabindex: '0' }, code), element('p', {}, stop))
  say('Paid. The answer arrives ...')
  for (let characters = 0; ; ) {
    const read = await reader.read().catch(() => undefined)
    if (read === undefined) return end(true)
    const { done, value } = read
    if (done) return end(false)
    chunks.push(value)
    if (!isText || characters >= shownMaxCharacters) continue
    const text = decoder.decode(value, { stream: true })
    characters += text.length
    code.append(text)
  }
}

/** The page's data about the network of a payment. */
function networkOf({ dataset }, settlement) {
  return JSON.parse(dataset.networks).find(({ id }) => id === settlement?.network) ?? {}
}

/** Keeps a receipt, in the form that `turnpike receipt verify` reads, and shows it. */
function receiptOf({ settlement, credential }, panel) {
  const { issuedAt } = settlement.extensions?.['offer-receipt']?.info.receipt.payload ?? {}
  const { payTo } = decode(credential).accepted
  const at = new Date(issuedAt ? issuedAt * 1000 : Date.now()).toISOString()
  const { seller } = panel.dataset
  const kept = { ...settlement, at, seller, payTo, ...purchaseOf(panel) }
  return receiptParts(kept, networkOf(panel, settlement), keepReceipt(kept))
}
