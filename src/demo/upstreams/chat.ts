import { type Ask, hex, type Reply, type Route, todayMs } from './reply'

type Message = { role: string; content: unknown }

function failed(status: number, message: string): Reply {
  return { status, body: { error: { code: status, message } } }
}

function parse(body: string): { model: string; messages: Message[]; stream: boolean } | undefined {
  try {
    const value = JSON.parse(body)
    if (!Array.isArray(value.messages) || value.messages.length === 0) return undefined
    const model = typeof value.model === 'string' ? value.model : 'demo/echo-1'
    return { model, messages: value.messages, stream: value.stream === true }
  } catch {
    return undefined
  }
}

function complete({ headers, body }: Ask): Reply {
  if (!/^Bearer \S+$/.test(headers.get('authorization') ?? '')) {
    return failed(401, 'No auth credentials found')
  }
  const asked = parse(body)
  if (!asked) return failed(400, 'Input must be JSON with at least one message')
  const last = asked.messages.at(-1)?.content
  const text = typeof last === 'string' ? last.slice(0, 200) : 'something without text'
  const content = `A sample model has read "${text}" and has nothing to add.`
  const words = content.split(/(?<= )/)
  // Use the raw text: serialising deeply nested content again would overflow the stack.
  const promptTokens = Math.ceil(body.length / 4)
  const usage = {
    prompt_tokens: promptTokens,
    completion_tokens: words.length,
    total_tokens: promptTokens + words.length,
  }
  const head = {
    id: `gen-${hex(body, 12)}`,
    provider: 'Demo',
    model: asked.model,
    created: Math.floor(todayMs / 1000),
  }
  if (asked.stream) return { body: undefined, events: chunks(head, words, usage) }
  return {
    body: {
      ...head,
      object: 'chat.completion',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content },
          finish_reason: 'stop',
          native_finish_reason: 'stop',
        },
      ],
      usage,
    },
  }
}

function chunks(head: object, words: readonly string[], usage: object): string[] {
  const chunk = (delta: object, reason: string | null, more: object = {}) => {
    const choices = [{ index: 0, delta, finish_reason: reason, native_finish_reason: reason }]
    return `data: ${JSON.stringify({ ...head, object: 'chat.completion.chunk', choices, ...more })}\n\n`
  }
  return [
    ': PROCESSING\n\n',
    ...words.map((content) => chunk({ role: 'assistant', content }, null)),
    chunk({ role: 'assistant', content: '' }, 'stop', { usage }),
    'data: [DONE]\n\n',
  ]
}

/** Every name is answered by the same sample: these are the ones that the shipped file sells. */
const models = [
  'demo/echo-1',
  '~google/gemini-flash-latest',
  '~anthropic/claude-sonnet-latest',
  '~openai/gpt-latest',
  '~moonshotai/kimi-latest',
]

/** An OpenAI-compatible chat service, under its own prefix and under OpenRouter's. */
export const routes: readonly Route[] = [
  { method: 'POST', path: /^(?:\/api)?\/v1\/chat\/completions$/, answer: complete },
  {
    path: /^(?:\/api)?\/v1\/models$/,
    answer: () => ({
      body: {
        data: models.map((id) => ({ id, name: id, context_length: 8192 })),
      },
    }),
  },
]
