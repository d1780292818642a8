import { readContent } from '../../gateway/mcp/answer'
import * as Json from '../../protocol/Json'
import { useEntitlement } from '../buy/entitlement'
import { problemOf } from '../buy/outcome'
import * as SignIn from '../buy/SignIn'
import * as Answer from './Answer'
import { type BuyerOptions, type CallResult, refusal, type Wanted } from './call'
import * as Sentences from './Sentences'
import * as Text from './Text'

/**
 * Calls that the wallet may have without a payment. Messages of MCP cannot sign in, so these requests are
 * made over HTTP.
 */
export type Entitlements = ReturnType<typeof createEntitlements>

type Options = Pick<BuyerOptions, 'gateway' | 'catalogue' | 'privateKey' | 'network' | 'now'>

/** `required`: the offers of the call. */
type Called = Wanted & { id: string; required: Json.JsonObject; signal: AbortSignal }

/** How long a tool is paid for without another look, unless something is bought, ms. */
const idleMs = 600_000

/** The gateway decides at each call; the memory of the process only saves requests. */
export function createEntitlements(options: Options) {
  const { catalogue, now } = options
  /** What was found at the last look, by tool, and when a further look is due (unix ms). */
  const found = new Map<string, { text: string; dueAt: number }>()
  /** Calls that were paid for at tools whose answers can be fetched again. */
  const bought = new Set<string>()
  return {
    /** The answer without a payment; undefined when the call is to be paid for. Never throws. */
    async use(called: Called): Promise<CallResult | undefined> {
      const { id, name } = called
      if (!catalogue.isEntitled(name)) return undefined
      if (now() < (found.get(name)?.dueAt ?? 0) && !bought.has(id)) return undefined
      const { result, text } = await use(options, called)
      found.set(name, { text, dueAt: result === undefined ? now() + idleMs : 0 })
      return result
    },
    noteBought(tool: string, id: string): void {
      if (catalogue.isEntitled(tool)) bought.add(id)
      if (catalogue.isPass(tool)) found.clear()
    },
    /** A line for each tool that was looked at. */
    describe: () =>
      Array.from(
        found,
        ([name, { text }]) => `Without a payment, ${name} gave at the last call: ${text}.`,
      ),
  }
}

async function use(
  { gateway, privateKey, network }: Options,
  { args, required, signal }: Called,
): Promise<{ result?: CallResult; text: string }> {
  const url = URL.parse(Json.text(Json.child(required, 'resource'), 'url') ?? '')
  if (url?.origin !== gateway.origin) return { text: 'nothing, it is sold at another address' }
  let isSigned = false
  const send = (headers: Readonly<Record<string, string>>) => {
    isSigned = SignIn.header in headers
    return fetch(url, requestOf(args.body, headers, AbortSignal.any([signal, gateway.late()])))
  }
  try {
    const used = await useEntitlement(await send({}), { url, privateKey, network, send })
    if (used.kind === 'answered') return await answered(used.response, url)
    await used.response.body?.cancel()
    return { text: `nothing, ${Text.line(used.why ?? 'no sign-in is offered', 100)}` }
  } catch {
    const text = signal.aborted ? 'The call was cancelled.' : `${url.origin} cannot be reached.`
    // A use may have been counted, so that the call is not paid for at once.
    const result = refusal(Sentences.unreachable(text))
    return isSigned || signal.aborted ? { result, text } : { text }
  }
}

/** The request that the gateway makes of the arguments. */
function requestOf(
  body: Json.Json | undefined,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): RequestInit {
  const common = { accept: '*/*', 'accept-encoding': 'identity', ...headers }
  // A signature is for this URL, so it must not follow a redirect.
  const init: RequestInit = { headers: common, redirect: 'manual', signal }
  if (body === undefined) return init
  return {
    ...{ ...init, method: 'POST', body: JSON.stringify(body) },
    headers: { ...common, 'content-type': 'application/json' },
  }
}

async function answered(
  response: Response,
  url: URL,
): Promise<{ result: CallResult; text: string }> {
  const entitlement = response.headers.get('payment-entitlement')
  if (!response.ok && entitlement === null) {
    const { code, detail, reason = '' } = await problemOf(response)
    const text = Sentences.said({ code, detail, reason })
    const result = refusal(`${text} Nothing was paid. Call again to try once more.`)
    return { result, text: code }
  }
  const text = Text.line(SignIn.describe(entitlement ?? 'kind=again'), 100)
  const { content, truncated } = await readContent(response, url.href, () => true)
  const notes = [...(truncated ? ['The answer is not whole.'] : []), Sentences.covered(text)]
  const all = [...Answer.contentOf({ content }), ...notes.map(Answer.note)]
  return { result: { content: all, ...(!response.ok && { isError: true }) }, text }
}
