# needs: postgres
