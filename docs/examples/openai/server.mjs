// A stand-in for a server with OpenAI's interface, such as vLLM, Ollama or llama.cpp: its model repeats the
// last message.
import { createServer } from 'node:http'

const server = createServer(async (request, response) => {
  if (request.method !== 'POST' || request.url !== '/v1/chat/completions') {
    response.writeHead(404).end()
    return
  }
  let text = ''
  for await (const chunk of request) text += chunk
  const { model, messages, max_tokens: most = 16, stream = false } = JSON.parse(text)
  const words = messages.at(-1).content.split(' ').slice(0, most)
  const usage = { prompt_tokens: text.length, completion_tokens: words.length }
  const of = (choice) => ({ id: 'chat-1', model, choices: choice === undefined ? [] : [choice] })
  if (!stream) {
    const message = { role: 'assistant', content: words.join(' ') }
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ ...of({ index: 0, message, finish_reason: 'stop' }), usage }))
    return
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const word of words) {
    const delta = { content: `${word} ` }
    response.write(`data: ${JSON.stringify(of({ index: 0, delta, finish_reason: null }))}\n\n`)
  }
  response.write(`data: ${JSON.stringify(of({ index: 0, delta: {}, finish_reason: 'stop' }))}\n\n`)
  response.end(`data: ${JSON.stringify({ ...of(), usage })}\n\ndata: [DONE]\n\n`)
})
server.listen(process.env.PORT ?? 11434, '127.0.0.1', () => {
  console.log(`the model listens on http://127.0.0.1:${server.address().port}`)
})
