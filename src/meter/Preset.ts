import { all, type Pointer } from './Pointer'

/** Where a service says what an answer used, and where a request says what it may use. Data only. */
export type Preset = {
  counters: readonly Counter[]
  /** The answer failed when something other than null or false stands here. */
  failures: readonly Pointer[]
  /** The model that answered. */
  answeredBy: readonly Pointer[]
  /** Undefined when requests are not looked into. */
  request: RequestPlan | undefined
}

/** A number of the service's that is charged as a unit. */
export type Counter = {
  unit: string
  /** In a whole answer; the first that is there counts. */
  answer: readonly Pointer[]
  /** In one event of a stream. Numbers of services are running totals: the last event counts. */
  event: readonly Pointer[]
  /** The unit whose price counts while this one has none. */
  partOf?: string
  /** The service's number of `partOf` contains this one, so that it is taken out of it. */
  isIncluded?: boolean
  /** Without it the answer has no usage. */
  isRequired?: boolean
}

export type RequestPlan = {
  model: readonly Pointer[]
  /** Lists of models that answer when the first one does not. */
  fallbacks: readonly Pointer[]
  /** The model in the upstream's path, as the first group. Requests to other paths are refused. */
  path: RegExp | undefined
  /** Names of the output limit by the upstream's path; the first entry that fits. */
  output: readonly OutputNames[]
  /** Answers that are made at once; the largest counts. */
  choices: readonly Pointer[]
  /** True when the answer is a stream. */
  stream: readonly Pointer[]
  /** Tokens that the service adds to what the body holds, such as a system prompt for tools. */
  overheadTokens: number
  /** Values of members named `type` that are text. Others bring in what the body's length does not bound. */
  textTypes: ReadonlySet<string>
  /** Members, in lower case, that bring in what the body's length does not bound. */
  unboundNames: ReadonlySet<string>
  /** An object with an `id` and no `type` stands for an item that the service keeps. */
  hasReferences?: boolean
}

export type OutputNames = {
  path: RegExp
  /** The first is the one that the upstream obeys; the buyer's other names are changed to it. */
  names: readonly Pointer[]
  /** Set in requests for a stream, so that the stream reports its usage. */
  onStream: readonly { at: Pointer; value: boolean | number | string }[]
}

export type Name = 'openai' | 'anthropic' | 'gemini' | 'header' | 'none'
export const names: readonly Name[] = ['openai', 'anthropic', 'gemini', 'header', 'none']

const anyPath = /^/

/** What JSON Schema and the vendors call parts whose whole content is text of the body. */
const textTypes: ReadonlySet<string> = new Set([
  ...'text input_text output_text refusal summary_text reasoning_text reasoning thinking'.split(
    ' ',
  ),
  ...'redacted_thinking message function function_call function_call_output custom'.split(' '),
  ...'custom_tool_call custom_tool_call_output tool tool_use tool_result grammar'.split(' '),
  ...'json_object json_schema auto any none required enabled disabled adaptive'.split(' '),
  ...'ephemeral allowed_tools string number integer boolean array object null'.split(' '),
  // Gemini writes the types of its schemas in capitals.
  ...'STRING NUMBER INTEGER BOOLEAN ARRAY OBJECT NULL'.split(' '),
])

const unboundNames: ReadonlySet<string> = new Set([
  // Images, sound, video and files.
  ...'image image_url input_image audio input_audio video video_url file file_id file_data'.split(
    ' ',
  ),
  ...'file_url filedata inlinedata inline_data source document documents'.split(' '),
  // What the service keeps: earlier answers, stored prompts, caches.
  ...'previous_response_id conversation prompt preset cachedcontent cached_content'.split(' '),
  // Tools that the service runs itself and whose results are input.
  ...'plugins web_search_options mcp_servers container googlesearch google_search'.split(' '),
  ...'googlesearchretrieval google_search_retrieval urlcontext url_context codeexecution'.split(
    ' ',
  ),
  ...'code_execution filesearch file_search googlemaps google_maps computeruse'.split(' '),
  ...'computer_use enterprisewebsearch enterprise_web_search'.split(' '),
])

/** Looks for nothing in a request but how long it is. */
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

/** No pointers, for an operator that writes its own. */
export const empty: Preset = {
  counters: [],
  failures: all('/error'),
  answeredBy: [],
  request: noRequest,
}

/**
 * Chat completions and responses. `prompt_tokens` contains cached and audio tokens, `completion_tokens`
 * contains reasoning and audio tokens and rejected predictions. A stream reports usage in its last
 * chunk when `stream_options.include_usage` asks for it; other chunks have `usage: null`. Responses
 * report it in `response.completed` and `response.incomplete`.
 */
const openai: Preset = {
  counters: [
    {
      unit: 'input',
      answer: all('/usage/prompt_tokens', '/usage/input_tokens'),
      event: all('/usage/prompt_tokens', '/response/usage/input_tokens'),
      isRequired: true,
    },
    {
      unit: 'audio_input',
      answer: all('/usage/prompt_tokens_details/audio_tokens'),
      event: all('/usage/prompt_tokens_details/audio_tokens'),
      partOf: 'input',
      isIncluded: true,
    },
    {
      unit: 'cached_input',
      answer: all(
        '/usage/prompt_tokens_details/cached_tokens',
        '/usage/input_tokens_details/cached_tokens',
      ),
      event: all(
        '/usage/prompt_tokens_details/cached_tokens',
        '/response/usage/input_tokens_details/cached_tokens',
      ),
      partOf: 'input',
      isIncluded: true,
    },
    {
      unit: 'cache_write',
      answer: all('/usage/prompt_tokens_details/cache_write_tokens'),
      event: all('/usage/prompt_tokens_details/cache_write_tokens'),
      partOf: 'input',
      isIncluded: true,
    },
    {
      unit: 'output',
      answer: all('/usage/completion_tokens', '/usage/output_tokens'),
      event: all('/usage/completion_tokens', '/response/usage/output_tokens'),
      isRequired: true,
    },
    {
      unit: 'audio_output',
      answer: all('/usage/completion_tokens_details/audio_tokens'),
      event: all('/usage/completion_tokens_details/audio_tokens'),
      partOf: 'output',
      isIncluded: true,
    },
    {
      unit: 'reasoning',
      answer: all(
        '/usage/completion_tokens_details/reasoning_tokens',
        '/usage/output_tokens_details/reasoning_tokens',
      ),
      event: all(
        '/usage/completion_tokens_details/reasoning_tokens',
        '/response/usage/output_tokens_details/reasoning_tokens',
      ),
      partOf: 'output',
      isIncluded: true,
    },
  ],
  // The last one is of OpenRouter, whose status is 200 by then.
  failures: all('/error', '/response/error', '/choices/0/error'),
  answeredBy: all('/model', '/response/model'),
  request: {
    ...noRequest,
    model: all('/model'),
    // OpenRouter's.
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
    // `item_reference` of responses, whose type may be left out.
    hasReferences: true,
    stream: all('/stream'),
  },
}

/**
 * Messages. `input_tokens` contains neither what was read from the cache nor what was written to it;
 * `output_tokens` contains thinking. `message_start` has the input and a first count of the output, each
 * `message_delta` the total of the output and, of newer models, everything. A stream without a
 * `message_delta` has no usage.
 */
const anthropic: Preset = {
  counters: [
    {
      unit: 'input',
      answer: all('/usage/input_tokens'),
      event: all('/usage/input_tokens', '/message/usage/input_tokens'),
      isRequired: true,
    },
    {
      unit: 'cached_input',
      answer: all('/usage/cache_read_input_tokens'),
      event: all('/usage/cache_read_input_tokens', '/message/usage/cache_read_input_tokens'),
      partOf: 'input',
    },
    {
      unit: 'cache_write',
      answer: all('/usage/cache_creation_input_tokens'),
      event: all(
        '/usage/cache_creation_input_tokens',
        '/message/usage/cache_creation_input_tokens',
      ),
      partOf: 'input',
    },
    {
      unit: 'cache_write_1h',
      answer: all('/usage/cache_creation/ephemeral_1h_input_tokens'),
      event: all(
        '/usage/cache_creation/ephemeral_1h_input_tokens',
        '/message/usage/cache_creation/ephemeral_1h_input_tokens',
      ),
      partOf: 'cache_write',
      isIncluded: true,
    },
    {
      unit: 'output',
      answer: all('/usage/output_tokens'),
      event: all('/usage/output_tokens'),
      isRequired: true,
    },
    {
      unit: 'web_search',
      answer: all('/usage/server_tool_use/web_search_requests'),
      event: all('/usage/server_tool_use/web_search_requests'),
    },
  ],
  failures: all('/error'),
  answeredBy: all('/model', '/message/model'),
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
 * generateContent and streamGenerateContent, as events and as a JSON array. `promptTokenCount` contains
 * cached content; tool results and thoughts are counted beside input and candidates. Numbers of zero
 * are left out. Each chunk has the totals so far.
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
  header: { counters: [], failures: [], answeredBy: [], request: undefined },
  none: { ...empty, request: undefined },
}
