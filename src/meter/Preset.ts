import { all, type Pointer } from './Pointer'
import type { Names } from './Text'

/**
 * Where the answers of a service have their usage, and where requests have their limits. Data only.
 */
export type Preset = {
  counters: readonly Counter[]
  /** The answer failed when one of these has a value that is neither empty nor null, false or 0. */
  failures: readonly Pointer[]
  /** The model that answered. */
  answeredBy: readonly Pointer[]
  /** Names of members with text, in requests and in answers. */
  texts: Names
  /** Undefined when requests are not read. */
  request: RequestPlan | undefined
}

/** A number of the service that is charged as a unit. */
export type Counter = {
  unit: string
  /** Pointers into a whole answer. The first one with a value counts. */
  answer: readonly Pointer[]
  /**
   * Pointers into one event of a stream. Services report running totals, so the last event counts.
   */
  event: readonly Pointer[]
  /** The unit whose price applies while this one has none. */
  partOf?: string
  /**
   * Whether the service's number of `partOf` contains this one, which is then subtracted from it.
   */
  isIncluded?: boolean
  /** Whether an answer without this number has no usage. */
  isRequired?: boolean
}

export type RequestPlan = {
  model: readonly Pointer[]
  /** Lists of models that answer when the first one does not. */
  fallbacks: readonly Pointer[]
  /**
   * Pattern of the upstream's path with the model as its first group. Requests to other paths are
   * refused.
   */
  path: RegExp | undefined
  /** Names of the output limit by the upstream's path. The first entry that fits counts. */
  output: readonly OutputNames[]
  /** Number of answers to one request. The largest value counts. */
  choices: readonly Pointer[]
  /** Members that are true when the answer is a stream. */
  stream: readonly Pointer[]
  /** Tokens that the service adds to the body, such as a system prompt for tools. */
  overheadTokens: number
  /**
   * Values of members named `type` whose content is text. Others bring in input that the body's
   * length does not limit.
   */
  textTypes: ReadonlySet<string>
  /** Members, in lower case, that bring in input that the body's length does not limit. */
  unboundNames: ReadonlySet<string>
  /** Whether an object with an `id` and no `type` refers to an item that the service keeps. */
  hasReferences?: boolean
}

export type OutputNames = {
  path: RegExp
  /** The upstream obeys the first one. The buyer's other names are changed to it. */
  names: readonly Pointer[]
  /** Set in requests for a stream, so that the stream reports its usage. */
  onStream: readonly { at: Pointer; value: boolean | number | string }[]
}

export type Name = 'openai' | 'anthropic' | 'gemini' | 'header' | 'none'
export const names: readonly Name[] = ['openai', 'anthropic', 'gemini', 'header', 'none']

const anyPath = /^/

/**
 * Names by which JSON Schema and the vendors mark parts whose whole content is text of the body.
 */
const textTypes = words(
  'text input_text output_text refusal summary_text reasoning_text reasoning thinking',
  'redacted_thinking message function function_call function_call_output custom',
  'custom_tool_call custom_tool_call_output tool tool_use tool_result grammar',
  'json_object json_schema auto any none required enabled disabled adaptive',
  'ephemeral allowed_tools string number integer boolean array object null',
  // Gemini writes the types of its schemas in capitals.
  'STRING NUMBER INTEGER BOOLEAN ARRAY OBJECT NULL',
)

const unboundNames = words(
  // Images, sound, video and files.
  'image image_url input_image audio input_audio video video_url file file_id file_data',
  'file_url filedata inlinedata inline_data source document documents',
  // Items that the service keeps: earlier answers, stored prompts, caches.
  'previous_response_id conversation prompt preset cachedcontent cached_content',
  // Tools that the service runs itself and whose results are input.
  'plugins web_search_options mcp_servers container googlesearch google_search',
  'googlesearchretrieval google_search_retrieval urlcontext url_context codeexecution',
  'code_execution filesearch file_search googlemaps google_maps computeruse',
  'computer_use enterprisewebsearch enterprise_web_search',
)

function words(...lines: readonly string[]): ReadonlySet<string> {
  return new Set(lines.flatMap((line) => line.split(' ')))
}

/** Reads only the length of a request. */
export const noRequest: RequestPlan = {
  model: [],
  fallbacks: [],
  path: undefined,
  output: [],
  choices: [],
  stream: [],
  overheadTokens: 1024,
  textTypes,
  unboundNames,
}

/** Without pointers, for an operator that writes its own. */
export const empty: Preset = {
  counters: [],
  failures: all('/error'),
  answeredBy: [],
  texts: [],
  request: noRequest,
}

const inInput = { partOf: 'input', isIncluded: true }
const inOutput = { partOf: 'output', isIncluded: true }

/** A number by its name in the usage of chat completions, and by that in the usage of responses. */
function openaiCounter(unit: string, names: readonly string[], more: Partial<Counter>): Counter {
  const answer = all(...names.map((name) => `/usage/${name}`))
  const events = names.map((name, i) => (i === 0 ? `/usage/${name}` : `/response/usage/${name}`))
  return { unit, answer, event: all(...events), ...more }
}

/**
 * Chat completions and responses. `prompt_tokens` contains cached and audio tokens,
 * `completion_tokens` contains reasoning and audio tokens and rejected predictions. A stream
 * reports usage in its last chunk when `stream_options.include_usage` asks for it; other chunks
 * have `usage: null`. Responses report it in `response.completed` and `response.incomplete`.
 */
const openai: Preset = {
  counters: [
    openaiCounter('input', ['prompt_tokens', 'input_tokens'], { isRequired: true }),
    openaiCounter('audio_input', ['prompt_tokens_details/audio_tokens'], inInput),
    openaiCounter(
      'cached_input',
      ['prompt_tokens_details/cached_tokens', 'input_tokens_details/cached_tokens'],
      inInput,
    ),
    openaiCounter('cache_write', ['prompt_tokens_details/cache_write_tokens'], inInput),
    openaiCounter('output', ['completion_tokens', 'output_tokens'], { isRequired: true }),
    openaiCounter('audio_output', ['completion_tokens_details/audio_tokens'], inOutput),
    openaiCounter(
      'reasoning',
      ['completion_tokens_details/reasoning_tokens', 'output_tokens_details/reasoning_tokens'],
      inOutput,
    ),
  ],
  // The last pointer is for OpenRouter, whose status is already 200 then.
  failures: all('/error', '/response/error', '/choices/0/error'),
  answeredBy: all('/model', '/response/model'),
  texts: [
    // Responses repeat in later events what they have sent as `delta`.
    ['delta'],
    'content text reasoning reasoning_content refusal arguments input instructions output'.split(
      ' ',
    ),
  ],
  request: {
    ...noRequest,
    model: all('/model'),
    // OpenRouter reads this member.
    fallbacks: all('/models'),
    output: [
      {
        path: /\/responses$/,
        names: all('/max_output_tokens', '/max_completion_tokens', '/max_tokens'),
        onStream: [],
      },
      {
        path: anyPath,
        names: all('/max_completion_tokens', '/max_tokens', '/max_output_tokens'),
        onStream: all('/stream_options/include_usage').map((at) => ({ at, value: true })),
      },
    ],
    choices: all('/n', '/best_of'),
    // An `item_reference` of responses may omit its type.
    hasReferences: true,
    stream: all('/stream'),
  },
}

/** The usage in `message_start`. */
const inStart = ['/message/usage']

/** A number by its name in the usage, which is also at `further` places in events. */
function anthropicCounter(
  unit: string,
  name: string,
  further: readonly string[],
  more: Partial<Counter>,
): Counter {
  const event = all(...['/usage', ...further].map((place) => `${place}/${name}`))
  return { unit, answer: all(`/usage/${name}`), event, ...more }
}

/**
 * Messages. `input_tokens` contains neither the tokens that were read from the cache nor those
 * written to it. `output_tokens` contains thinking. `message_start` has the input and a first count
 * of the output. Each `message_delta` has the total of the output and, with newer models,
 * everything. A stream without a `message_delta` has no usage.
 */
const anthropic: Preset = {
  counters: [
    anthropicCounter('input', 'input_tokens', inStart, { isRequired: true }),
    anthropicCounter('cached_input', 'cache_read_input_tokens', inStart, { partOf: 'input' }),
    anthropicCounter('cache_write', 'cache_creation_input_tokens', inStart, { partOf: 'input' }),
    anthropicCounter('cache_write_1h', 'cache_creation/ephemeral_1h_input_tokens', inStart, {
      partOf: 'cache_write',
      isIncluded: true,
    }),
    anthropicCounter('output', 'output_tokens', [], { isRequired: true }),
    anthropicCounter('web_search', 'server_tool_use/web_search_requests', [], {}),
  ],
  failures: all('/error'),
  answeredBy: all('/model', '/message/model'),
  texts: ['text thinking partial_json content system'.split(' ')],
  request: {
    ...noRequest,
    model: all('/model'),
    output: [
      {
        path: anyPath,
        names: all('/max_tokens', '/max_completion_tokens', '/max_output_tokens'),
        onStream: [],
      },
    ],
    stream: all('/stream'),
  },
}

const geminiOutput = ['maxOutputTokens', 'max_output_tokens']
const geminiChoices = ['candidateCount', 'candidate_count']
const inConfig = (names: readonly string[]) =>
  all(
    ...['generationConfig', 'generation_config'].flatMap((parent) =>
      names.map((name) => `/${parent}/${name}`),
    ),
  )

/**
 * generateContent and streamGenerateContent, as events and as a JSON array. `promptTokenCount`
 * contains cached content; tool results and thoughts are counted beside input and candidates.
 * Numbers of zero are left out. Each chunk has the totals so far.
 */
const gemini: Preset = {
  counters: [
    geminiCounter('input', 'promptTokenCount', { isRequired: true }),
    geminiCounter('cached_input', 'cachedContentTokenCount', { partOf: 'input', isIncluded: true }),
    geminiCounter('tool_input', 'toolUsePromptTokenCount', { partOf: 'input' }),
    geminiCounter('output', 'candidatesTokenCount', {}),
    geminiCounter('reasoning', 'thoughtsTokenCount', { partOf: 'output' }),
  ],
  failures: all('/error'),
  answeredBy: all('/modelVersion'),
  texts: [['text']],
  request: {
    ...noRequest,
    path: /\/(?:models|tunedModels)\/([^/:]+):(?:g|streamG)enerateContent$/,
    output: [{ path: anyPath, names: inConfig(geminiOutput), onStream: [] }],
    choices: inConfig(geminiChoices),
  },
}

function geminiCounter(unit: string, name: string, more: Partial<Counter>): Counter {
  const at = all(`/usageMetadata/${name}`)
  return { unit, answer: at, event: at, ...more }
}

export const presets: Readonly<Record<Name, Preset>> = {
  openai,
  anthropic,
  gemini,
  // The upstream names the charge in a header, so nothing is read from the body.
  header: { counters: [], failures: [], answeredBy: [], texts: [], request: undefined },
  none: { ...empty, request: undefined },
}
