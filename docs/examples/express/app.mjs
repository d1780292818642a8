// An API in Express that answers only the gateway.
import express from 'express'

const app = express()
app.use((request, response, next) => {
  if (request.get('x-api-key') === process.env.API_KEY) return next()
  response.status(401).json({ error: 'the key is missing' })
})

app.get('/convert', (request, response) => {
  const { celsius } = request.query
  response.json({ celsius: Number(celsius), fahrenheit: Number(celsius) * 1.8 + 32 })
})

app.post('/words', express.json(), (request, response) => {
  response.json({ words: request.body.text.split(/\s+/).filter(Boolean).length })
})

const server = app.listen(process.env.PORT ?? 8080, '127.0.0.1', () => {
  console.log(`the API listens on http://127.0.0.1:${server.address().port}`)
})
