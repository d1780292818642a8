/** An answer of a sample upstream. */
export type Reply = {
  status?: number
  /** Sent as JSON. */
  body: unknown
  /** Replaces `body`: server-sent events, one after the other. */
  events?: readonly string[]
}

/** The samples do not read the clock, so that equal requests get equal answers. */
const created = Date.parse('2026-11-19T12:00:00Z') / 1000

type Message = { role: string; content: unknown }

function failed(status: number, message: string): Reply {
  return { status, body: { error: { code: status, message } } }
}

type Asked = {
  model: string
  messages: Message[]
  stream: boolean
  /** Whether a stream ends with its usage. */
  reportsUsage: boolean
  /** Most tokens of the answer. */
  outputMax: number
}

function parse(body: string): Asked | undefined {
  try {
    const value = JSON.parse(body)
    if (!Array.isArray(value.messages) || value.messages.length === 0) return undefined
    return {
      model: typeof value.model === 'string' ? value.model : 'demo/echo-1',
      messages: value.messages,
      stream: value.stream === true,
      reportsUsage: value.stream_options?.include_usage === true,
      outputMax: value.max_completion_tokens ?? value.max_tokens ?? Number.POSITIVE_INFINITY,
    }
  } catch {
    return undefined
  }
}

/** The answer of an OpenAI-compatible chat service. */
export function complete(headers: Headers, body: string): Reply {
  if (!/^Bearer \S+$/.test(headers.get('authorization') ?? '')) {
    return failed(401, 'No auth credentials found')
  }
  const asked = parse(body)
  if (!asked) return failed(400, 'Input must be JSON with at least one message')
  const last = asked.messages.at(-1)?.content
  const text = typeof last === 'string' ? last.slice(0, 200) : 'something without text'
  const all = `A sample model has read "${text}" and has nothing to add.`.split(/(?<= )/)
  const words = all.slice(0, asked.outputMax)
  const reason = words.length < all.length ? 'length' : 'stop'
  // Use the raw text: serialising deeply nested content again would overflow the stack.
  const promptTokens = Math.ceil(body.length / 4)
  const usage = {
    prompt_tokens: promptTokens,
    completion_tokens: words.length,
    total_tokens: promptTokens + words.length,
    prompt_tokens_details: { cached_tokens: 0, audio_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: 0, audio_tokens: 0 },
  }
  const head = {
    id: `gen-${Bun.hash(body).toString(16)}`,
    provider: 'Demo',
    model: asked.model,
    created,
  }
  if (asked.stream) {
    const reported = asked.reportsUsage ? usage : undefined
    return { body: undefined, events: chunks(head, words, { reason, usage: reported }) }
  }
  return {
    body: {
      ...head,
      object: 'chat.completion',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: words.join('') },
          finish_reason: reason,
          native_finish_reason: reason,
        },
      ],
      usage,
    },
  }
}

/** With `stream_options.include_usage` the last chunk has the usage and no choices. */
function chunks(
  head: object,
  words: readonly string[],
  { reason, usage }: { reason: string; usage: object | undefined },
): string[] {
  const event = (members: object) =>
    `data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', ...members })}\n\n`
  const noUsage = usage === undefined ? {} : { usage: null }
  const chunk = (content: string, end: string | null) => {
    const delta = { role: 'assistant', content }
    const choices = [{ index: 0, delta, finish_reason: end, native_finish_reason: end }]
    return event({ choices, ...noUsage })
  }
  return [
    ': PROCESSING\n\n',
    ...words.map((content) => chunk(content, null)),
    chunk('', reason),
    ...(usage === undefined ? [] : [event({ choices: [], usage })]),
    'data: [DONE]\n\n',
  ]
}

/** Every name is answered by the same sample: these are the ones that the shipped file sells. */
export const models = {
  data: [
    'demo/echo-1',
    '~google/gemini-flash-latest',
    '~anthropic/claude-sonnet-latest',
    '~openai/gpt-latest',
    '~moonshotai/kimi-latest',
  ].map((id) => ({ id, name: id, context_length: 8192 })),
}
